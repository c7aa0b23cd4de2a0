"""Play one round: jobs that overlap, faults that befall them, and a look at all at its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.chaos.faults import Faults
from tests.chaos.ledger import Ledger
from tests.chaos.stage import GRACE_PERIOD, ORPHAN_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.checks import Findings
    from tests.chaos.faults import Steps
    from tests.chaos.scenario import Fault, Round
    from tests.chaos.stage import Stage
    from tests.fleet import Host, Process

LAST_END = 240.0  # seconds within which every run must have ended, once all is well again
AGAIN = 60.0  # seconds after which a run is failed once more
LAST_PROCESS = ORPHAN_TIMEOUT + GRACE_PERIOD + 30.0


class Player:
    """One round on a stage.

    :param width: jobs that run at the same time
    """

    def __init__(
        self, stage: Stage, part: Round, say: Callable[[str], None], width: int = 6
    ) -> None:
        self.stage = stage
        self.part = part
        self.say = say
        self.width = width
        self.ledger = Ledger(stage)
        self.faults = Faults(stage, self.ledger)
        self._jobs = part.jobs()
        self._hangs = 0  # of faults, that found nothing to befall
        self._under_way: list[tuple[float, Fault, Steps]] = []

    def play(self) -> Findings:
        """Play it, and return what was not as it must be."""
        self._top_up()
        self._pass(10)
        for fault in self.part.faults:
            self._top_up()
            self.say(f"fault {fault.number}: {fault.kind}")
            self._under_way.append((0, fault, self.faults.steps(fault)))
            self._pass(fault.pause)
        while self._under_way:
            self._pass(1)
        return self._settle()

    def _top_up(self) -> None:
        missing = self.width - len(self.ledger.active())
        for _ in range(missing):
            self.ledger.submit(next(self._jobs))

    def _pass(self, seconds: float) -> None:
        """Let time go by, and faults go on."""
        end = time.monotonic() + seconds
        while True:
            self._go_on()
            if time.monotonic() > end:
                return
            time.sleep(0.2)

    def _go_on(self) -> None:
        self.faults.revive()
        for step in list(self._under_way):
            due, fault, steps = step
            if time.monotonic() >= due:
                self._under_way.remove(step)
                self._step(fault, steps)

    def _step(self, fault: Fault, steps: Steps) -> None:
        try:
            wait = next(steps, None)
        except TimeoutError as error:
            self.say(f"fault {fault.number} ({fault.kind}) hangs: {error}")
            self._hangs += 1
            return
        if wait is not None:
            self._under_way.append((time.monotonic() + wait, fault, steps))

    # The end

    def _settle(self) -> Findings:
        self.say("faults are over: waiting for every run to end")
        self.faults.revive()
        self.stage.airflow.wait_until_healthy()
        hangs = self._wait_for_runs()
        orphans = self._wait_for_processes()
        findings = self.ledger.judge(self.say)
        findings.faults = len(self.part.faults)
        findings.hangs += hangs + self._hangs
        findings.orphans += orphans
        self.say(f"round {self.part.number}: {len(self.ledger.entries)} jobs, {findings}")
        return findings

    def _wait_for_runs(self) -> int:
        end = time.monotonic() + LAST_END
        due: dict[str, float] = {}
        while (active := self.ledger.active()) and time.monotonic() < end:
            self.faults.revive()
            endless = [entry for entry in active if entry.job.lines is None]
            for entry in endless:
                # More than once: what a user does while the scheduler looks on may be undone.
                if time.monotonic() > due.get(entry.job.key, 0):
                    due[entry.job.key] = time.monotonic() + AGAIN
                    entry.user, entry.cut = entry.user or "failed", True
                    self.stage.patiently(entry.run.fail)
            time.sleep(1)
        for entry in active:
            self.say(f"{entry.job.key} hangs: {self.ledger.task_state(entry)}, {entry.excuses}")
            entry.user, entry.cut = "failed", True
            self.stage.patiently(entry.run.fail)
        return len(active)

    def _wait_for_processes(self) -> int:
        end = time.monotonic() + LAST_PROCESS
        while (left := self.stage.left()) and time.monotonic() < end:
            time.sleep(1)
        for host, process in left:
            self.say(f"left on {host.name}: {process.command[:200]}")
        _kill(left)
        return len(left)


def _kill(left: list[tuple[Host, Process]]) -> None:
    for host, process in left:
        host.exec(["kill", "-KILL", str(process.pid)], user="root", check=False)
