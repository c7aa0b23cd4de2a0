"""The page of the fleets, from what real hosts answered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.ui import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dev.airflow import AirflowStack
    from dev.rest import Run
    from tests.fleet import Fleet
    from tests.ui.browser import Window

    Told = Callable[..., Run]


@pytest.fixture
def looked(airflow: AirflowStack, fleet: Fleet, tmp_path: Path) -> Iterator[Run]:
    """A run of `fleet_health`, while a host is drained."""
    airflow.api.wait_for_dag("fleet_health")
    airflow.api.call("PATCH", "/api/v2/dags/fleet_health", {"is_paused": False})
    care(fleet, tmp_path, "drain", "gpu2", "--reason", "new fans")
    run = airflow.api.trigger("fleet_health")
    run.wait()
    yield run
    airflow.api.call("PATCH", "/api/v2/dags/fleet_health", {"is_paused": True})
    care(fleet, tmp_path, "undrain", "gpu2")


def care(fleet: Fleet, folder: Path, *words: str) -> None:
    """Look after hosts from a shell."""
    variables = {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW_CONN_GPU_FLEET_DEFAULT": fleet.connection_json(),
    }
    command = [sys.executable, "-m", "distributed_training", *words]
    subprocess.run(command, env=variables, check=True, capture_output=True)


def test_what_the_dag_found(looked: Run, fleet: Fleet) -> None:
    record = looked.xcom("look", "fleet_health")
    (found,) = record["fleets"]
    assert looked.state() == "success", looked.log("look")
    assert [host["state"] for host in found["hosts"]] == ["ok", "drained"]
    assert "new fans" in found["hosts"][1]["reason"]
    assert found["hosts"][0]["slots"] == ["cpu-0", "cpu-1"]


def test_hosts_and_who_holds_them(
    looked: Run, window: Window, told: Told, shoot: Callable[[str], None]
) -> None:
    record = records.training("running")
    for rank in record["ranks"]:
        rank["slot"] = f"cpu-{rank['rank'] % 2}"
    told(records.training("success"))
    for each in (record, records.waiting()):
        told(each, hold=True).wait_for_task("train", "running")
    page = window.fleets()
    expect(page.get_by_label("Host gpu2")).to_contain_text("drained by ")
    expect(page.get_by_label("Host gpu1")).to_contain_text(re.compile("CPU 0.*told · train"))
    expect(page.get_by_label("Waiting", exact=True)).to_contain_text("held by job nightly-9")
    expect(page.get_by_label("In use", exact=True)).to_contain_text("gpu1: 2, gpu2: 2")
    expect(page.get_by_label("Recent trainings", exact=True)).to_contain_text("success")
    shoot("fleets")
