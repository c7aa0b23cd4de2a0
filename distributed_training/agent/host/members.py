"""The processes of a job, and their end."""

from __future__ import annotations

import os
import signal
import time

from .processes import bears, process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from .processes import Process


ACTIVE_POLL = 0.05  # seconds
KILL_TIMEOUT = 15.0  # a process in an uninterruptible call may outlive SIGKILL for ever


class Members:
    """The processes of a job: what its agents started, and whatever bears its mark."""

    def __init__(self, mark: str, agents: Sequence[Process]) -> None:
        self.mark = b"DT_JOB_MARK=" + mark.encode()
        self.agents = agents

    def find(self) -> list[Process]:
        """Return the members that have not ended."""
        table = process_table()
        roots = {each.pid for each in self.agents if each.alive()}
        members = self.descendants(table, roots)
        for pid in table.keys() - members - roots - {os.getpid()}:
            if bears(pid, self.mark):
                members.add(pid)
        return [table[pid] for pid in members]

    @staticmethod
    def descendants(table: dict[int, Process], roots: set[int]) -> set[int]:
        """Return the processes below others."""
        children: dict[int, list[int]] = {}
        for process in table.values():
            children.setdefault(process.parent, []).append(process.pid)
        found: set[int] = set()
        queue = list(roots)
        while queue:
            for pid in children.get(queue.pop(), ()):
                if pid not in found:
                    found.add(pid)
                    queue.append(pid)
        return found - roots


class Ending:
    """The end of all members: stop signal, grace period, SIGKILL, until nobody is left."""

    def __init__(
        self,
        members: Members,
        stop_signal: int,
        grace: float,
        programs: Container[int] = (),
        served: Callable[[], bool] = lambda: False,
    ) -> None:
        self.members = members
        # Of ranks below an mpirun, which would kill them all, on all hosts, if it were asked first.
        self.programs = programs
        self.served = served  # by a daemon, which an mpirun elsewhere must not miss
        self.stop_signal = stop_signal
        self.kill_at = time.monotonic() + grace
        self.signalled: set[tuple[int, int]] = set()
        self.survivors: list[int] = []
        self._quiet = 0

    def step(self) -> bool:
        """Signal whom it is time to signal, and tell whether it is over."""
        now = time.monotonic()
        left = self.members.find()
        self.survivors = sorted(process.pid for process in left)
        self._quiet = 0 if left else self._quiet + 1
        if self._quiet >= 2 or now > self.kill_at + KILL_TIMEOUT:
            return True
        for process in left if now >= self.kill_at else self._topmost(self._asked(left)):
            process.send(signal.SIGKILL if now >= self.kill_at else self.stop_signal)
            self.signalled.add(process.key)
        return False

    def _asked(self, left: Sequence[Process]) -> Sequence[Process]:
        ranks = [process for process in left if process.pid in self.programs]
        return ranks if ranks or self.served() else left

    def _topmost(self, left: Sequence[Process]) -> list[Process]:
        # A launcher passes the signal on, and a rank that saves its state still needs its helpers:
        # so each process is asked only when its parent is gone.
        pids = {process.pid for process in left}
        return [
            process
            for process in left
            if process.parent not in pids and process.key not in self.signalled
        ]
