"""A real Airflow as teams run it: Celery, two triggerers, Postgres and Redis."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dev.airflow import COMPONENTS, AirflowStack
from dev.services import teams_services
from tests.chaos.stage import airflow_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fleet import Fleet

ROOT = Path(__file__).parents[3]
WORKER = "celery worker --concurrency 4 --skip-serve-logs --without-gossip --without-mingle"
COMMANDS = {
    **COMPONENTS,
    "worker": WORKER.split(),
    "second-triggerer": COMPONENTS["triggerer"],
}
SETTINGS = {
    # Near Airflow's own 30 s: the first question to its database keeps a triggerer for several
    # seconds from saying that it lives, and ten where others work as well.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "25",
    # Seconds after which Redis gives the task of a silent worker to another one, running or not.
    "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "5",
}


@pytest.fixture(scope="module")
def airflow(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    """Airflow with the DAGs of ranks that count, in place of the one of the other tests."""
    folder = tmp_path_factory.mktemp("teams")
    for dags in (Path(__file__).parent / "dags", ROOT / "tests/chaos/dags"):
        shutil.copytree(dags, folder / "dags", dirs_exist_ok=True)
    with teams_services() as services:
        own = {**airflow_settings(), **SETTINGS, **services}
        stack = AirflowStack(folder / "home", folder / "dags", own, COMMANDS, progress=print)
        with stack:
            _save_connection(stack, "large_fleet", fleet)
            yield stack


def _save_connection(airflow: AirflowStack, name: str, fleet: Fleet) -> None:
    """Save a connection where teams have theirs, in the database."""
    connection = fleet.connection(slots=24)
    body = {**connection, "connection_id": name, "extra": json.dumps(connection["extra"])}
    airflow.api.call("POST", "/api/v2/connections", body)
