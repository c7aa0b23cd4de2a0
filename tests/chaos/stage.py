"""Where it happens: hosts, Airflow, a second triggerer at times, and patience with all of them."""

from __future__ import annotations

import json
import shutil
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dev.airflow import AirflowStack
from dev.programs import Program, session
from dev.rest import AirflowError, Run
from dev.services import database
from dev.setup import hosts_python
from tests.chaos.scenario import CONTESTED, DAGS, HOSTS, SLOTS
from tests.fleet import Fleet, processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.scenario import Job
    from tests.fleet import Host, Process

CONTESTED_SLOTS = 3
PATIENCE = 120.0  # seconds within which Airflow must answer
ORPHAN_TIMEOUT = 120
HOST_TIMEOUT = 20
GRACE_PERIOD = 3
HEALTH = 12  # seconds until a triggerer counts as dead
# Airflow's clocks, as fast as they reliably go on a small machine.
CLOCKS = {
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(HEALTH),
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
    "CORE__PARALLELISM": "6",
}


def airflow_settings() -> dict[str, str]:
    """Return variables of an Airflow that notices soon what died."""
    return {f"AIRFLOW__{name}": value for name, value in CLOCKS.items()}


def second_triggerer(airflow: AirflowStack) -> Program:
    """Return one more triggerer of the same Airflow, to be started."""
    first = airflow.components["triggerer"]
    log = airflow.home / "second-triggerer.log"
    return Program("airflow triggerer (second)", first.command, log, airflow.variables)


def freeze(program: Program) -> None:
    """Stop a program and all that it started, as a machine does that is out of memory."""
    _signal(program, signal.SIGSTOP)


def thaw(program: Program) -> None:
    """Let a frozen program go on."""
    _signal(program, signal.SIGCONT)


def _signal(program: Program, number: signal.Signals) -> None:
    assert program.process is not None
    processes.send(number, [member.pid for member in session(program.process.pid)])


@dataclass
class Stage:
    """Hosts and an Airflow, for as long as the block lasts.

    :param folder: where Airflow has its home
    :param say: told what is being done
    """

    folder: Path
    say: Callable[[str], None]
    fleet: Fleet = field(init=False)
    airflow: AirflowStack = field(init=False)
    _cleanup: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.fleet = stack.enter_context(Fleet.up(len(HOSTS) + 1, kind="namespaces"))
            dags = self.folder / "dags"
            shutil.copytree(Path(__file__).parent / "dags", dags)
            # With SQLite, a program that is frozen while it writes would stop all the others.
            environment = {
                **airflow_settings(),
                **stack.enter_context(database()),
                "AIRFLOW_CONN_GPU_FLEET_DEFAULT": self._connection(),
            }
            self.airflow = AirflowStack(self.folder / "home", dags, environment, progress=self.say)
            stack.enter_context(self.airflow)
            for dag in DAGS:
                self.airflow.api.wait_for_dag(dag)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _connection(self) -> str:
        connection = self.fleet.connection(slots=SLOTS, python=str(hosts_python("torch")))
        lines = connection["extra"]["hosts"].splitlines()
        room = {CONTESTED: CONTESTED_SLOTS}
        for place, line in enumerate(lines):
            if (name := line.split()[0]) in room:
                lines[place] = line.replace(f"slots={SLOTS}", f"slots={room[name]}")
        connection["extra"]["hosts"] = "\n".join(lines)
        return json.dumps(connection)

    def submit(self, job: Job) -> Run:
        """Start a run for a job; its key is the run's id, so that asking twice is harmless."""
        conf = {
            "orders": {"key": job.key, "lines": job.lines, "ranks": job.own},
            "hosts": "@".join(job.hosts),
            "ranks": job.ranks,
            "grace_period": GRACE_PERIOD,
            "host_timeout": HOST_TIMEOUT,
            "orphan_timeout": ORPHAN_TIMEOUT,
        }
        body = {"dag_run_id": job.key, "logical_date": None, "conf": conf}
        path = f"/api/v2/dags/{job.dag}/dagRuns"
        self.patiently(lambda: self.airflow.api.call("POST", path, body), harmless="409")
        return Run(self.airflow.api, job.dag, job.key)

    def patiently(self, call: Callable[[], Any], harmless: str = "never") -> Any:
        """Return what Airflow answers, once it does: its API server may be down just now."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except AirflowError as error:
                if f": {harmless} " in str(error):
                    return None
                if time.monotonic() > end:
                    raise
            time.sleep(1)

    def ranks(self, key: str) -> list[tuple[Host, Process]]:
        """Return the ranks of a job, as seen from outside of the hosts."""
        named = f'"key": "{key}"'
        return [
            (host, process)
            for host in self.fleet.hosts
            for process in host.processes()
            if named in process.command and process.command.split()[1].endswith("count.py")
        ]

    def left(self) -> list[tuple[Host, Process]]:
        """Return all that the ranks' user runs on the hosts, logins included."""
        return [
            (host, process)
            for host in self.fleet.hosts
            for process in host.processes()
            if process.user == host.user and not process.command.startswith("sshd")
        ]
