"""What can be known from outside: what ranks recorded, and what the task's log shows."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import quote

from dev.rest import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dev.rest import Run
    from tests.fleet import Fleet

SHOWN = re.compile(r"\[rank \d+ \S+\] ([0-9a-f]{8}) (\d+|done)")
DONE = -1


@dataclass(frozen=True, slots=True)
class Printed:
    """What one process of a rank has printed for sure, and from when to when it counted."""

    host: str
    rank: int
    process: str
    numbers: int  # 0, 1, … up to this one, without it
    done: bool
    first: float
    last: float
    intruder: bool  # there was another writer


def printed(fleet: Fleet, key: str) -> list[Printed]:
    """Return the records of all ranks of a job on all hosts, earliest first."""
    found = []
    for host in fleet.hosts:
        folder = host.folder / "home" / host.user / "records" / key
        for path in folder.glob("*.seen"):
            rank, process, _ = path.name.split(".")
            rows = [row.split() for row in path.read_text().splitlines() if row.count(" ") == 1]
            if not rows:
                continue
            done = rows[-1][0] == "done"
            times = [float(row[1]) for row in rows]
            intruder = path.with_suffix(".double").exists()
            counted = len(rows) - done
            found.append(
                Printed(host.name, int(rank), process, counted, done, times[0], times[-1], intruder)
            )
    return sorted(found, key=lambda record: record.first)


def logged(run: Run, task_id: str, number: int) -> list[str]:
    """Return a try's log by time: Airflow shows more than 5000 lines of two files out of order."""
    path = f"/api/v2/dags/{run.dag_id}/dagRuns/{quote(run.run_id, safe='')}"
    path += f"/taskInstances/{task_id}/logs/{number}"
    content = run.api.call("GET", path, full_content=True)["content"]
    timed = [
        (datetime.fromisoformat(each["timestamp"]), text)
        for each in content
        if each.get("timestamp")
        for text in lines_of(each)
    ]
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def shown(log: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers in a log by the process that printed them, as they stand there."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for line in log:
        if match := SHOWN.fullmatch(line):
            number = match.group(2)
            numbers[match.group(1)].append(DONE if number == "done" else int(number))
    return numbers


def condensed(log: Iterable[str]) -> Iterator[str]:
    """Yield a log in which of each stretch of counting only the first and the last line are."""
    for counts, lines in groupby(log, lambda line: bool(SHOWN.fullmatch(line))):
        stretch = list(lines)
        if counts and len(stretch) > 2:
            stretch = [stretch[0], f"... {len(stretch) - 2} more", stretch[-1]]
        yield from stretch
