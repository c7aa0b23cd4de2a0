"""Where the command line finds a connection while no service of Airflow runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fleet import Fleet

ROOT = Path(__file__).parents[2]


def run(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python in an Airflow of its own, with no other setting."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *words],
        env=environment | {"AIRFLOW_HOME": str(home / "airflow")} | variables,
        cwd=home,
        text=True,
        capture_output=True,
        check=False,
    )


def test_airflows_database_is_read(fleet: Fleet, tmp_path: Path) -> None:
    connection = fleet.connection_json(slots=1)
    migrated = run(tmp_path, "airflow", "db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    added = run(tmp_path, "airflow", "connections", "add", "gpus", "--conn-json", connection)
    assert added.returncode == 0, added.stderr
    done = run(tmp_path, "distributed_training", "doctor", "--conn-id", "gpus", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["hosts"]) == ["gpu1", "gpu2"]


def test_an_environment_variable_needs_no_database(fleet: Fleet, tmp_path: Path) -> None:
    variables = {"AIRFLOW_CONN_GPUS": fleet.connection_json(slots=1)}
    done = run(tmp_path, "distributed_training", "ps", "--conn-id", "gpus", "--json", **variables)
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr


def test_what_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "distributed_training", "ps", "--conn-id", "gpus")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("there is no connection 'gpus'")
    assert "Traceback" not in done.stderr
