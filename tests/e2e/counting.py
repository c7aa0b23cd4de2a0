"""Runs whose ranks count aloud, and what can be known of them from outside."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dev.rest import ENDED, AirflowError, Run, until
from tests.chaos.checks import double_jobs, doubled_lines, lost_lines
from tests.chaos.evidence import Printed, logged, printed, shown

if TYPE_CHECKING:
    from dev.airflow import AirflowStack
    from tests.fleet import Fleet

ORPHAN_TIMEOUT = 30


@dataclass(frozen=True, slots=True)
class Counting:
    """One run; ``key`` tells its ranks from those of others."""

    run: Run
    fleet: Fleet
    key: str

    @classmethod
    def start(
        cls,
        airflow: AirflowStack,
        fleet: Fleet,
        key: str,
        lines: int | None = None,
        dag: str = "ranks",
        ranks: dict[str, Any] | None = None,
        **params: Any,
    ) -> Counting:
        """Start a run of four ranks that count to ``lines``, or for ever."""
        orders = {"key": key, "lines": lines, "ranks": ranks or {}}
        given = {"fleet": "large_fleet", "orders": orders, **params}
        return cls(airflow.api.trigger(dag, given), fleet, key)

    def pids(self) -> set[tuple[str, int]]:
        """Return the processes of its ranks, by host."""
        named = f'"key": "{self.key}"'
        return {
            (host.name, process.pid)
            for host in self.fleet.hosts
            for process in host.processes()
            if named in process.command
        }

    def wait_for(self, *states: str) -> Counting:
        """Return once all ranks count and the task is in one of these states."""
        self.run.wait_for_task("train", *states)
        for _ in until(60, f"the ranks of {self.key} do not run"):
            if len(self.pids()) == 4:
                break
        return self

    def wait_for_no_rank(self, seconds: float) -> None:
        """Return once no rank is left, as seen from outside."""
        for _ in until(seconds, f"ranks of {self.key} live on", pause=0.2):
            if not self.pids():
                return

    def end(self) -> None:
        """End it, if it has not ended; its DAG may be gone."""
        with suppress(AirflowError):
            if self.run.state() not in ENDED:
                self.run.fail()

    def records(self) -> list[Printed]:
        """Return what each process of a rank has printed for sure."""
        return printed(self.fleet, self.key)

    def assert_nothing_lost(self, tries: int = 1, *, to_the_end: bool = True) -> None:
        """Check every line of every rank in the task's log, and that each rank was there once."""
        records = self.records()
        logs = [shown(logged(self.run, "train", number)) for number in range(1, tries + 1)]
        for record in records:
            numbers = [number for log in logs for number in log.get(record.process, [])]
            assert lost_lines(record, numbers, may_be_cut=not to_the_end) == 0, record
            assert not any(doubled_lines(log.get(record.process, [])) for log in logs), record
        assert double_jobs(records) == 0
