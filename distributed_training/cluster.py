"""A cluster of TensorFlow: which tasks it has, in the order of their ranks, and who must finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Role = Literal["chief", "worker", "ps", "evaluator"]
Placement = Literal["slots", "round_robin"]
PLACEMENTS: tuple[Placement, ...] = ("slots", "round_robin")


@dataclass(frozen=True, slots=True)
class Task:
    """One process of the cluster, by the names that ``TF_CONFIG`` has for it."""

    role: Role
    index: int

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.role if self.role == "chief" else f"{self.role} {self.index}"

    @property
    def takes_slots(self) -> bool:
        """Whether it computes; a parameter server only keeps variables, in the host's memory."""
        return self.role != "ps"

    @property
    def listens(self) -> bool:
        """Whether others connect to it: evaluators are no part of the cluster."""
        return self.role != "evaluator"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the user asked for. A rank's number is the place of its task in :meth:`tasks`.

    :param placement: fill host after host, or deal tasks to all hosts in turn
    :param slots_per_worker: of each task that takes slots
    :param evaluator_timeout: seconds that evaluators may go on once everyone else is done
    :param bypass_proxies: tasks reach each other directly, whatever proxies their hosts name
    """

    worker_count: int
    parameter_server_count: int = 0
    chief: bool = False
    evaluator_count: int = 0
    placement: Placement = "slots"
    slots_per_worker: int = 1
    evaluator_timeout: float = 300.0
    bypass_proxies: bool = True

    def tasks(self) -> tuple[Task, ...]:
        """Return every task: first the one that TensorFlow takes for the chief."""
        return tuple(Task(role, n) for role, count in self._counts().items() for n in range(count))

    def serves(self, task: Task) -> float | None:
        """Return for how many seconds a task may go on when the cluster's work is done.

        None: it has to end by itself, since its work is the cluster's. A chief of parameter
        servers coordinates workers that wait for ever for what it sends them.
        """
        if task.role == "evaluator":
            return self.evaluator_timeout
        waits = task.role == "ps" or (task.role == "worker" and self._is_coordinated())
        return 0.0 if waits else None

    def _is_coordinated(self) -> bool:
        return self.chief and self.parameter_server_count > 0

    def _counts(self) -> Mapping[Role, int]:
        return {
            "chief": int(self.chief),
            "worker": self.worker_count,
            "ps": self.parameter_server_count,
            "evaluator": self.evaluator_count,
        }

    def __str__(self) -> str:
        counts = {role: count for role, count in self._counts().items() if count}
        return ", ".join(f"{role} {count}" for role, count in counts.items())
