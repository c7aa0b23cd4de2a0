"""What earlier triggers of a try have logged, as far as that lies on this machine."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.configuration import conf
from airflow.utils.helpers import log_filename_template_renderer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow.models.taskinstance import TaskInstance

# A watcher acknowledges lines some seconds late, when the next ones come: only so many seconds
# before its end can come again.
ECHO = 20.0
TAIL = 4 << 20  # bytes of each file that are looked at
_OF_HOST = re.compile(r"\[(?:[^\]]* )?([^\] ]+)\] ")


def keep(ti: TaskInstance) -> list[Path]:
    """Save what earlier triggers of this try have logged, and return where it is.

    A triggerer opens its file anew, and empties it, when a task comes back to it. Airflow shows
    all files that begin with the name of the task's log, whatever follows.
    """
    log = Path(conf.get("logging", "base_log_folder")) / log_filename_template_renderer()(ti=ti)
    if not log.parent.is_dir():
        return []
    for path in log.parent.glob(f"{log.name}.trigger.*.log"):
        number = sum(1 for _ in path.parent.glob(f"{path.name}.*"))
        path.rename(path.with_name(f"{path.name}.{number}"))
    return sorted(log.parent.glob(f"{log.name}.trigger.*"))


def last_lines(paths: Iterable[Path]) -> Counter[str]:
    """Return the lines of each host that were logged shortly before its last one."""
    by_host: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for path in paths:
        for when, line in _lines(path):
            if match := _OF_HOST.match(line):
                by_host[match.group(1)].append((when, line))
    found: Counter[str] = Counter()
    for logged in by_host.values():
        last = max(when for when, _ in logged)
        found.update(line for when, line in logged if when > last - ECHO)
    return found


def _lines(path: Path) -> Iterator[tuple[float, str]]:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        for text in file:
            try:
                record = json.loads(text)
                yield datetime.fromisoformat(record["timestamp"]).timestamp(), record["event"]
            except (ValueError, KeyError, TypeError):
                continue  # the middle of a line, or one of another kind
