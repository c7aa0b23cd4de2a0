"""What the worker and earlier triggers of a try have logged, as far as that is on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow.configuration import conf
from airflow.utils.helpers import log_filename_template_renderer

from distributed_training.run.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

TAIL = 8 << 20  # bytes of each file that are looked at
# A triggerer that took longer to write what it was told would be given up by Airflow.
LATE = 30.0  # seconds
LAST = 16 << 10  # bytes of a file that surely hold its last line
LOOK_EVERY = 1.0  # seconds
_OF_HOST = re.compile(r"\[(?:[^\]]* )?([^\] ]+)\] ")


class TaskLog(Shown):
    """The log of a try, and in it the file to which a worker or a trigger writes.

    :param log: of the worker; all files belong to it that begin with its name
    :param own: pattern for the name of the file
    """

    def __init__(self, log: Path, own: str) -> None:
        self._log = log
        self._pattern = own
        self._own: Path | None = None
        self._written = self._looked = 0.0

    @classmethod
    def of_worker(cls, ti: Any) -> Self:
        """Return the log of a try for the worker that runs it."""
        log = _path(ti)
        return cls(log, log.name)

    @classmethod
    def of_trigger(cls, ti: Any) -> Self:
        """Return the log of a try for a trigger, once what earlier triggers have logged is saved.

        A triggerer opens its file anew, and empties it, when a task comes back to it. Airflow shows
        all files that begin with the name of the task's log, whatever follows.
        """
        log = _path(ti)
        own = f"{log.name}.trigger.*.log"
        for path in log.parent.glob(own):
            number = sum(1 for _ in path.parent.glob(f"{path.name}.*"))
            _save(path, path.with_name(f"{path.name}.{number}"))
        return cls(log, own)

    def logged(self, host: str, since: float) -> Counter[str]:
        """Return how often each line of a host was logged since a ``time.time()``."""
        return Counter(
            line
            for path in self._log.parent.glob(f"{self._log.name}*")
            for when, line in _lines(path)
            if when >= since and (match := _OF_HOST.match(line)) and match.group(1) == host
        )

    def written(self) -> float:
        """Return when the last line was logged that is in the file.

        Lines go there one after the other, through a pipe of which Airflow takes 4 KiB at a time:
        on a busy machine that takes seconds, and what is in the pipe dies with the triggerer.
        """
        if self._own is None:
            self._own = next(self._log.parent.glob(self._pattern), None)
        if self._own is None:
            return super().written()
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._looked = time.monotonic()
            times = (when for when, _ in _lines(self._own, LAST))
            self._written = max(times, default=self._written)
        return self._written

    async def reached(self, last: str) -> None:
        """Return once a line is the last in the file, and so all before it, or after `LATE`.

        The end of a trigger overtakes its lines, and the file is closed then.
        """
        end = time.monotonic() + LATE
        while time.monotonic() < end:
            if await asyncio.to_thread(self._ends_with, last):
                return
            await asyncio.sleep(0.1)

    def _ends_with(self, last: str) -> bool:
        files = self._log.parent.glob(self._pattern)
        return any(line == last for path in files for _, line in _lines(path, LAST))


def _save(path: Path, saved: Path) -> None:
    """Keep what is in a file by now, under another name, and not what is still written to it.

    A triggerer that was frozen has lines on their way there, which its successor shows as well.
    """
    path.rename(saved)  # first: what is not found there any more is not acknowledged
    copy = saved.with_name(f".{saved.name}")
    shutil.copyfile(saved, copy)
    copy.replace(saved)


def _path(ti: Any) -> Path:
    """Return where a worker has its log of a try."""
    return Path(conf.get("logging", "base_log_folder")) / log_filename_template_renderer()(ti=ti)


def _lines(path: Path, tail: int = TAIL) -> Iterator[tuple[float, str]]:
    with suppress(FileNotFoundError), path.open("rb") as file:  # another trigger may rename it
        file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
        for text in file:
            try:
                record = json.loads(text)
                yield datetime.fromisoformat(record["timestamp"]).timestamp(), record["event"]
            except (ValueError, KeyError, TypeError):
                continue  # the middle of a line, or one of another kind
