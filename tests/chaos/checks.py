"""What must hold, whatever has happened: counted from evidence, never by the code under test."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.chaos.evidence import DONE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tests.chaos.evidence import Printed


@dataclass(slots=True)
class Findings:
    """How often something was not as it must be; the last line of a run."""

    faults: int = 0
    orphans: int = 0
    lost_lines: int = 0
    doubled_lines: int = 0
    double_jobs: int = 0
    false_success: int = 0
    hangs: int = 0
    # Told, and no less wrong, but not of the last line: a failure that nothing excuses.
    unexcused: int = 0

    def __str__(self) -> str:
        told = asdict(self).items()
        return " ".join(f"{name}={value}" for name, value in told if name != "unexcused")

    def add(self, other: Findings) -> None:
        """Count what another part of the run has found, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not any(value for name, value in asdict(self).items() if name != "faults")


def lost_lines(record: Printed, numbers: Sequence[int], *, may_be_cut: bool) -> int:
    """Return how many lines of a process are not in the log, or not where they belong.

    :param may_be_cut: its last lines need not be there
    """
    seen = set(numbers)
    last = record.numbers
    if may_be_cut:
        last = min(last, max(seen, default=-1) + 1)
    missing = sum(number not in seen for number in range(last))
    missing += record.done and DONE not in seen and not may_be_cut
    counted = [number for number in dict.fromkeys(numbers) if number != DONE]
    return missing + sum(later < earlier for earlier, later in pairwise(counted))


def irregular(record: Printed, numbers: Sequence[int]) -> str:
    """Return where a log departs from what a process has printed, for people."""
    places = [
        f"{earlier} then {later}"
        for earlier, later in pairwise(numbers)
        if later not in (earlier + 1, DONE)
    ]
    return f"{len(numbers)} of {record.numbers}: {', '.join(places[:6])}"


def doubled_lines(numbers: Sequence[int]) -> int:
    """Return how many lines of a process are in the log more than once."""
    return len(numbers) - len(set(numbers))


def double_jobs(records: Sequence[Printed]) -> int:
    """Return how often two processes were the same rank at the same time, on any hosts."""
    by_rank: Mapping[int, list[Printed]] = defaultdict(list)
    for record in records:
        by_rank[record.rank].append(record)
    overlaps = sum(
        later.first < earlier.last
        for own in by_rank.values()
        for earlier, later in pairwise(sorted(own, key=lambda record: record.first))
    )
    return overlaps + sum(record.intruder for record in records)


def crowded(records: Collection[Printed], room: int) -> int:
    """Return how many processes began on a host while it had no room for them."""
    return sum(
        sum(other.first <= record.first <= other.last for other in records) > room
        for record in records
    )


def false_success(state: str, records: Sequence[Printed], world_size: int) -> bool:
    """Tell whether a run that is called a success was none: not every rank came to its end."""
    latest = {record.rank: record for record in sorted(records, key=lambda each: each.first)}
    ended = [record for record in latest.values() if record.done]
    return state == "success" and len(ended) != world_size
