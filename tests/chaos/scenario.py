"""What will happen: jobs and faults, drawn from a seed and nothing else."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = ("gpu1", "gpu2", "gpu3")  # those that faults befall
CONTESTED = "gpu4"  # has room for one of two jobs
SLOTS = 24
ROUND = 20  # faults between two looks at everything

# What jobs are drawn from, and how often: torchrun takes its time to import torch.
DAGS = {"ranks": 6, "ranks_again": 3, "ranks_torchrun": 1}

# Each kind, and how often it lies in the deck that faults are drawn from.
KINDS = {
    "kill_triggerer": 2,
    "restart_triggerer": 1,
    "freeze_triggerer": 1,
    "replace_triggerer": 1,
    "kill_scheduler": 1,
    "restart_scheduler": 1,
    "kill_api_server": 1,
    "kill_dag_processor": 1,
    "kill_task": 1,
    "kill_task_supervisor": 1,
    "drop_connections": 2,
    "freeze_connections": 2,
    "restart_sshd": 2,
    "pull_cable": 2,
    "pull_cable_long": 1,
    "cut_power": 2,
    "kill_rank": 2,
    "kill_supervisor": 2,
    "kill_watchdog": 1,
    "failing_rank": 2,
    "deaf_rank": 2,
    "flooding_rank": 2,
    "contention": 1,
    "mark_failed": 2,
    "mark_success": 2,
    "clear": 2,
    "fail_run": 2,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; ``aim`` and ``length``, both in [0, 1), choose its details."""

    number: int
    kind: str
    aim: float
    length: float
    pause: float  # seconds until the next one


@dataclass(frozen=True, slots=True)
class Job:
    """One training: how its ranks count, and where. It is endless if it has no ``lines``."""

    key: str
    dag: str
    hosts: tuple[str, ...]
    lines: int | None
    ranks: int = 2  # on each host
    own: dict[str, dict[str, Any]] = field(default_factory=dict)  # orders of single ranks

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.ranks * len(self.hosts)


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that are judged together, and as many jobs as they need."""

    number: int
    faults: tuple[Fault, ...]
    seed: str

    def jobs(self) -> Iterator[Job]:
        """Yield jobs without end."""
        draw = random.Random(f"{self.seed} jobs")
        for number in itertools.count():
            yield _job(draw, f"r{self.number}-{number}")


def rounds(seed: int, faults: int, size: int = ROUND) -> Iterator[Round]:
    """Yield what happens for a seed; a longer run begins as a shorter one does."""
    stream = _faults(random.Random(f"{seed} faults"))
    for number, first in enumerate(range(0, faults, size)):
        drawn = tuple(itertools.islice(stream, min(size, faults - first)))
        yield Round(number, drawn, f"{seed} {number}")


def _faults(draw: random.Random) -> Iterator[Fault]:
    numbers = itertools.count()
    while True:
        deck = [kind for kind, times in KINDS.items() for _ in range(times)]
        draw.shuffle(deck)
        for kind in deck:
            yield Fault(next(numbers), kind, draw.random(), draw.random(), draw.uniform(1, 5))


def _job(draw: random.Random, key: str) -> Job:
    hosts = tuple(sorted(draw.sample(HOSTS, draw.choice((1, 2, 2, 3)))))
    lines = draw.choice((None, draw.randint(100, 240)))
    dag = draw.choices([*DAGS], [*DAGS.values()])[0]
    return Job(key, dag, hosts, lines)
