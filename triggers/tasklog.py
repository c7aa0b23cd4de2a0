"""What the worker and earlier triggers of a try have logged, as far as that is on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.configuration import conf
from airflow.utils.helpers import log_filename_template_renderer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.models.taskinstance import TaskInstance

TAIL = 8 << 20  # bytes of each file that are looked at
# A triggerer that took longer to write what it was told would be given up by Airflow.
LATE = 30.0  # seconds
_OF_HOST = re.compile(r"\[(?:[^\]]* )?([^\] ]+)\] ")


def keep(ti: TaskInstance) -> Path:
    """Save what earlier triggers of this try have logged, and return the path of the try's log.

    A triggerer opens its file anew, and empties it, when a task comes back to it. Airflow shows
    all files that begin with the name of the task's log, whatever follows.
    """
    log = Path(conf.get("logging", "base_log_folder")) / log_filename_template_renderer()(ti=ti)
    for path in log.parent.glob(f"{log.name}.trigger.*.log"):
        number = sum(1 for _ in path.parent.glob(f"{path.name}.*"))
        path.rename(path.with_name(f"{path.name}.{number}"))
    return log


def logged(log: Path, host: str, since: float) -> Counter[str]:
    """Return how often each line of a host was logged since a ``time.time()``.

    :param log: of the try; all files count that begin with its name
    """
    return Counter(
        line
        for path in log.parent.glob(f"{log.name}*")
        for when, line in _lines(path)
        if when >= since and (match := _OF_HOST.match(line)) and match.group(1) == host
    )


async def reached(log: Path, last: str) -> None:
    """Return once a trigger's last line is in its file, and so all before it, or after `LATE`.

    Lines go there through a pipe of which Airflow takes 4 KiB at a time. The end of the trigger
    overtakes them, and the file is closed then: what is still on its way is lost.

    :param log: of the try
    """
    end = time.monotonic() + LATE
    while time.monotonic() < end:
        if await asyncio.to_thread(_ends_with, log, last):
            return
        await asyncio.sleep(0.1)


def _ends_with(log: Path, last: str) -> bool:
    files = log.parent.glob(f"{log.name}.trigger.*.log")
    return any(line == last for path in files for _, line in _lines(path, tail=4096))


def _lines(path: Path, tail: int = TAIL) -> Iterator[tuple[float, str]]:
    with suppress(FileNotFoundError), path.open("rb") as file:  # another trigger may rename it
        file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
        for text in file:
            try:
                record = json.loads(text)
                yield datetime.fromisoformat(record["timestamp"]).timestamp(), record["event"]
            except (ValueError, KeyError, TypeError):
                continue  # the middle of a line, or one of another kind
