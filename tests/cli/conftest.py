"""The command line as a shell would call it, on the connection or host list of test hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

from distributed_training.cli.main import main

if TYPE_CHECKING:
    from tests.conftest import JobsOn
    from tests.fleet import Fleet
    from tests.integration.jobs import Jobs


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


@pytest.fixture
def jobs(jobs_on: JobsOn, fleet: Fleet) -> Jobs:
    """Run jobs on the shared hosts, one slot each."""
    return jobs_on(fleet, slots=1)
