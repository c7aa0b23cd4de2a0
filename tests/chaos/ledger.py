"""What jobs were told to do, what befell them, and so what may become of them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dev.rest import ENDED, AirflowError
from tests.chaos.checks import (
    Findings,
    crowded,
    double_jobs,
    doubled_lines,
    false_success,
    irregular,
    lost_lines,
)
from tests.chaos.evidence import condensed, logged, printed, shown
from tests.chaos.scenario import CONTESTED
from tests.chaos.stage import CONTESTED_SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run
    from tests.chaos.evidence import Printed
    from tests.chaos.scenario import Job
    from tests.chaos.stage import Stage

SETTLED = 25.0  # seconds after which a task has surely been deferred
LAST_LINES = 80  # a job that has printed all but these may end at any moment


@dataclass(slots=True)
class Entry:
    """One job: what it was told, and what it may suffer from."""

    job: Job
    run: Run
    begun: float = field(default_factory=time.monotonic)
    excuses: list[str] = field(default_factory=list)  # why it may fail
    user: str | None = None  # what a user has made of it
    cut: bool = False  # its last lines need not be shown
    lossy: set[str] = field(default_factory=set)  # nor those of its ranks on these hosts

    def excuse(self, why: str, *, cut: bool = False, host: str | None = None) -> None:
        """Note why it may fail."""
        self.excuses.append(why)
        self.cut = self.cut or cut
        self.lossy |= {host} if host else set()


class Ledger:
    """All jobs of a round."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.entries: list[Entry] = []
        self.down: dict[str, str] = {}  # hosts that are out of reach, and why

    def submit(self, job: Job) -> Entry:
        """Start a job and enter it."""
        entry = Entry(job, self.stage.submit(job))
        for name in self.down.keys() & set(job.hosts):
            entry.excuse(f"{name}: {self.down[name]}", host=name)
        self.entries.append(entry)
        return entry

    def state(self, entry: Entry) -> str:
        """Return the state of a job's run."""
        return str(self.stage.patiently(entry.run.state))

    def task_state(self, entry: Entry) -> str | None:
        """Return the state of a job's task."""
        tasks: dict[str, str | None] = self.stage.patiently(entry.run.tasks)
        return tasks.get("train")

    def active(self) -> list[Entry]:
        """Return the jobs that have not come to their end."""
        return [entry for entry in self.entries if self.state(entry) not in ENDED]

    def calm(self) -> list[Entry]:
        """Return jobs whose ranks all run and that nothing has befallen, far from their end."""
        return [
            entry
            for entry in self.entries
            if not entry.excuses
            and entry.user is None
            and len(self.stage.ranks(entry.job.key)) == entry.job.world_size
            and not self._ends_soon(entry)
        ]

    def on(self, host: str) -> list[Entry]:
        """Return the jobs that have not come to their end and use a host."""
        return [entry for entry in self.active() if host in entry.job.hosts]

    def excuse_unsettled(self, why: str, host: str | None = None) -> None:
        """Excuse tasks that a worker has in hand just now, or is about to get.

        :param host: those alone that use this one
        """
        for entry in self.on(host) if host else self.active():
            fresh = time.monotonic() - entry.begun < SETTLED
            if fresh or self._ends_soon(entry) or self.task_state(entry) != "deferred":
                entry.excuse(f"{host}: {why}" if host else why, cut=True)

    def _ends_soon(self, entry: Entry) -> bool:
        lines = entry.job.lines
        records = printed(self.stage.fleet, entry.job.key)
        most = max((record.numbers for record in records), default=0)
        return lines is not None and most > lines - LAST_LINES

    # Judgement

    def judge(self, say: Callable[[str], None]) -> Findings:
        """Return what is not as it must be; each finding is told."""
        findings = Findings()
        contested = []
        for entry in self.entries:
            records = printed(self.stage.fleet, entry.job.key)
            contested += [record for record in records if record.host == CONTESTED]
            findings.add(self._judged(entry, records, say))
        findings.double_jobs += crowded(contested, CONTESTED_SLOTS)
        return findings

    def _judged(self, entry: Entry, records: list[Printed], say: Callable[[str], None]) -> Findings:
        # Of the task: a run whose task was between two states when a user failed it may succeed.
        tries, state = self._logs(entry), str(self.task_state(entry))
        found = Findings(
            double_jobs=double_jobs(records),
            false_success=entry.user != "success"
            and false_success(state, records, entry.job.world_size),
        )
        for record in records:
            shares = [shown(log).get(record.process, []) for log in tries]
            own = [number for share in shares for number in share]
            may_be_cut = entry.cut or record.host in entry.lossy
            lost = lost_lines(record, own, may_be_cut=may_be_cut)
            # A try that goes on with the ranks of a killed one may repeat its last lines.
            doubled = sum(doubled_lines(share) for share in shares)
            found.lost_lines += lost
            found.doubled_lines += doubled
            if lost or doubled:
                where = irregular(record, own)
                say(f"  rank {record.rank} on {record.host}: {lost} lost, {doubled} twice; {where}")
        if state == "failed" and not entry.excuses and entry.user is None:
            found.unexcused += 1
        if not found.clean:
            told = entry.excuses or ["nothing befell it"]
            say(f"{entry.job.key} ({state}, user {entry.user}): {found}; {', '.join(told)}")
            say("\n".join(f"    {line}" for log in tries for line in condensed(log)))
        return found

    def _logs(self, entry: Entry) -> list[list[str]]:
        """Return the log of each try; one that never began has none."""
        task = self.stage.patiently(lambda: entry.run.task("train"))
        logs = []
        for number in range(1, int(task["try_number"]) + 1):
            with suppress(AirflowError):
                logs.append(logged(entry.run, "train", number))
        return logs
