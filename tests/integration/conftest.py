"""Jobs on the shared test hosts, and on hosts that one test alone has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from distributed_training.hooks.fleet import FleetHook
from tests.integration.jobs import Jobs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fleet import Fleet


class JobsOn(Protocol):
    """Run jobs on a fleet."""

    def __call__(self, fleet: Fleet, **hosts: Any) -> Jobs:
        """Return what runs jobs there; ``hosts`` are settings of all hosts, as ``slots=2``."""
        ...


@pytest.fixture
def jobs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobsOn:
    """Run jobs on any fleet, through a connection in the environment."""

    def jobs(fleet: Fleet, **hosts: Any) -> Jobs:
        connection = fleet.connection_json(**({"slots": 2} | hosts))
        monkeypatch.setenv("AIRFLOW_CONN_GPU_FLEET_DEFAULT", connection)
        return Jobs(FleetHook(), tmp_path)

    return jobs


@pytest.fixture
def jobs(jobs_on: JobsOn, fleet: Fleet) -> Jobs:
    """Run jobs on the shared hosts, two slots each."""
    return jobs_on(fleet)
