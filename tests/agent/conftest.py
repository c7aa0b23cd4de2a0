"""Hosts and jobs for the tests of the agent."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.agent.host import Host, Job

if TYPE_CHECKING:
    from collections.abc import Iterator


class NewJob(Protocol):
    """Make a job that is gone when the test has ended."""

    def __call__(self, on: Host | None = None) -> Job:
        """Make it on a host, else on the test's own."""
        ...


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(root=tmp_path / "root", locks=tmp_path / "locks")


@pytest.fixture
def new_job(host: Host) -> Iterator[NewJob]:
    jobs: list[Job] = []

    def make(on: Host | None = None) -> Job:
        jobs.append(Job(on or host))
        return jobs[-1]

    yield make
    for job in jobs:
        job.clear()


@pytest.fixture
def job(new_job: NewJob) -> Job:
    return new_job()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user of this machine may use, as /tmp is."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
