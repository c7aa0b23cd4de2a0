"""DAGs whose ranks do as a run's parameters order: one for each way in which Airflow limits it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from distributed_training.operators.torch import TorchDistributedOperator

PARAMS: Any = {
    "fleet": Param("gpu_fleet_default", type="string"),
    "orders": Param({}, type="object"),
    "hosts": Param("gpu1@gpu2", type="string"),
    "ranks": Param(2, type="integer"),  # on each host
    "grace_period": Param(3, type="integer"),
    "host_timeout": Param(20, type="integer"),
    "orphan_timeout": Param(300, type="integer"),
}


def ranks_dag(dag_id: str, limit: timedelta | None = None, **task: Any) -> DAG:
    """Return a DAG of one task, `train`, that counts aloud."""
    with DAG(dag_id, schedule=None, params=PARAMS, dagrun_timeout=limit) as dag:
        TorchDistributedOperator(
            task_id="train",
            fleet_conn_id="{{ params.fleet }}",
            source_dir=str(Path(__file__).with_suffix("")),
            script="count.py",
            arguments=["{{ params.orders | tojson }}"],
            hosts="{{ params.hosts }}",
            nproc_per_node="{{ params.ranks }}",
            grace_period="{{ params.grace_period }}",
            host_timeout="{{ params.host_timeout }}",
            orphan_timeout="{{ params.orphan_timeout }}",
            **task,
        )
    return dag


once = ranks_dag("ranks", python="python3")
again = ranks_dag("ranks_again", python="python3", retries=1, retry_delay=timedelta(seconds=1))
task_limit = ranks_dag("ranks_limited", python="python3", execution_timeout=timedelta(seconds=45))
run_limit = ranks_dag("ranks_run_limited", timedelta(seconds=45), python="python3")
torchrun = ranks_dag("ranks_torchrun", launcher="torchrun")
deleted = [ranks_dag(f"ranks_deleted_{number}", python="python3") for number in range(2)]
