"""Every DAG that people may copy loads in an Airflow that has neither torch nor MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LOAD = """
import json, sys
sys.modules |= dict.fromkeys(["torch", "numpy", "sklearn", "tensorflow", "mpi4py"])
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
dags = [
    {"id": dag.dag_id, "file": dag.fileloc, "tags": sorted(dag.tags), "doc": dag.doc_md}
    for dag in bag.dags.values()
]
json.dump({"errors": bag.import_errors, "dags": dags}, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Airflow finds in the DAG folder."""
    home = tmp_path_factory.mktemp("airflow")
    subprocess.run(
        [sys.executable, "-c", LOAD, ROOT / "dags", home / "bag.json"],
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        cwd=ROOT,
        check=True,
    )
    return json.loads((home / "bag.json").read_text())


def test_every_file_of_the_dag_folder_loads_and_holds_a_dag(bag: Any) -> None:
    assert bag["errors"] == {}
    assert {dag["file"] for dag in bag["dags"]} == {str(path) for path in ROOT.glob("dags/*.py")}


def test_every_dag_says_what_it_is(bag: Any) -> None:
    for dag in bag["dags"]:
        assert dag["tags"], dag["id"]
        assert dag["doc"], dag["id"]
