"""Test hosts: `fleet` is shared, `make_fleet` is for tests that break things."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from dev.setup import hosts_python
from tests.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.jobs import Jobs


# Airflow makes its home when it is imported; a user's own is none of the tests' business.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")


class JobsOn(Protocol):
    """Run jobs on a fleet, which is the default connection from then on."""

    def __call__(self, fleet: Fleet, **extra: Any) -> Jobs:
        """Return what runs jobs there; ``extra`` is of the connection or its hosts (`slots=2`)."""
        ...


class MakeFleet(Protocol):
    """Make a fleet that ends with the test."""

    def __call__(self, number: int = 2, *, interfaces: dict[str, str] | None = None) -> Fleet:
        """Make hosts gpu1, gpu2, …."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fleet",
        choices=("namespaces", "loopback"),
        default="namespaces",
        help="what test hosts are made of; loopback needs no root, and tests that cut cables fail",
    )


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["AIRFLOW_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def fleet(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    """Two hosts for all tests that leave them as they were."""
    with Fleet.up(2, kind=pytestconfig.getoption("fleet")) as hosts:
        yield hosts


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """The Python of an environment with torch that the hosts' users can run."""
    return hosts_python("torch")


@pytest.fixture
def make_fleet(pytestconfig: pytest.Config) -> Iterator[MakeFleet]:
    """Make hosts that this test alone uses, and may break."""
    with ExitStack() as stack:

        def make(number: int = 2, *, interfaces: dict[str, str] | None = None) -> Fleet:
            kind = pytestconfig.getoption("fleet")
            return stack.enter_context(Fleet.up(number, kind=kind, interfaces=interfaces))

        yield make


@pytest.fixture
def jobs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobsOn:
    """Run jobs on any fleet, through a connection in the environment."""

    def jobs(fleet: Fleet, **extra: Any) -> Jobs:
        from distributed_training.hooks.fleet import FleetHook  # Airflow, which not all tests need
        from tests.integration.jobs import Jobs

        connection = fleet.connection_json(**({"slots": 2} | extra))
        monkeypatch.setenv("AIRFLOW_CONN_GPU_FLEET_DEFAULT", connection)
        return Jobs(FleetHook(), tmp_path)

    return jobs
