"""Ranks that count aloud, and are slow to start: for tests that break that off."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from distributed_training.operators.torch import TorchDistributedOperator

PARAMS: Any = {"fleet": Param("", type="string"), "orders": Param({}, type="object")}

with DAG("slow_start", schedule=None, params=PARAMS) as dag:
    TorchDistributedOperator(
        task_id="train",
        fleet_conn_id="{{ params.fleet }}",
        source_dir=str(Path(__file__).with_name("ranks")),
        script="count.py",
        arguments=["{{ params.orders | tojson }}"],
        setup="{{ 'sleep 30.5' if ti.try_number == 1 else '' }}",
        nproc_per_node=2,
        grace_period=3,
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
