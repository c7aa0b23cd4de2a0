"""The command line as a shell would call it, on the connection or host list of test hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from distributed_training.cli.main import main
from distributed_training.hooks.fleet import FleetHook
from tests.integration.jobs import Jobs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str


class Shell(Protocol):
    """Run commands."""

    def __call__(self, *words: str) -> Done:
        """Run one."""
        ...


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run commands of ours in this process."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")

    def run(*words: str) -> Done:
        capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return Done(status, said.out, said.err)

    return run


class JobsOn(Protocol):
    """Run jobs on a fleet, which is the default connection from then on."""

    def __call__(self, fleet: Fleet, **extra: Any) -> Jobs:
        """Return what runs jobs there."""
        ...


@pytest.fixture
def jobs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobsOn:
    def jobs(fleet: Fleet, **extra: Any) -> Jobs:
        connection = fleet.connection_json(**({"slots": 1} | extra))
        monkeypatch.setenv("AIRFLOW_CONN_GPU_FLEET_DEFAULT", connection)
        return Jobs(FleetHook(), tmp_path)

    return jobs


@pytest.fixture
def jobs(jobs_on: JobsOn, fleet: Fleet) -> Jobs:
    """Run jobs on the shared hosts, one slot each."""
    return jobs_on(fleet)
