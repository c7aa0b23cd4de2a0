"""A real Airflow and real hosts, shared by all tests that look at both from outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dev.airflow import AirflowStack
from dev.rest import ENDED, Run, until
from dev.setup import hosts_python
from tests.chaos.stage import airflow_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fleet import Fleet

ROOT = Path(__file__).parents[2]
SECRET = "hf_s3cr3t W0rd/42"  # of the connection `hf`
GRACE_PERIOD = 3  # seconds, of the DAGs that are for tests only


@pytest.fixture(scope="session")
def airflow(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    """Airflow with the DAGs that people copy, and some that are for tests only."""
    folder = tmp_path_factory.mktemp("airflow")
    for dags in (ROOT / "dags", Path(__file__).parent / "dags", ROOT / "tests/chaos/dags"):
        shutil.copytree(dags, folder / "dags", dirs_exist_ok=True)
    connection = fleet.connection_json(slots=2, python=str(hosts_python("torch")))
    secret = json.dumps({"conn_type": "generic", "password": SECRET})
    environment = {
        "AIRFLOW_CONN_GPU_FLEET_DEFAULT": connection,
        "AIRFLOW_CONN_LARGE_FLEET": fleet.connection_json(slots=24),
        "AIRFLOW_CONN_HF": secret,
        **airflow_settings(),
    }
    with AirflowStack(folder / "home", folder / "dags", environment, progress=print) as stack:
        yield stack


@pytest.fixture
def wait_until_idle(fleet: Fleet) -> Callable[[], None]:
    """Return when no program of the ranks' user is left on any host, as seen from outside."""

    def wait() -> None:
        for _ in until(GRACE_PERIOD + 10, "programs of an ended task live on"):
            if not any(p.user == host.user for host in fleet.hosts for p in host.processes()):
                return

    return wait


@pytest.fixture
def trigger(
    airflow: AirflowStack, wait_until_idle: Callable[[], None]
) -> Iterator[Callable[..., Run]]:
    """Start runs of a DAG by its parameters; what still runs after the test is ended."""
    runs = []

    def start(dag_id: str, **params: Any) -> Run:
        runs.append(airflow.api.trigger(dag_id, params))
        return runs[-1]

    yield start
    for run in runs:
        if run.state() not in ENDED:
            run.fail()
    wait_until_idle()
