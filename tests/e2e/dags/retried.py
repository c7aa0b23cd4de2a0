"""Tasks with the ready-made retry policy, each of which fails for a reason of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from distributed_training.errors import NodeLost
from distributed_training.operators.retry import retry_policy
from distributed_training.operators.torch import TorchDistributedOperator

TWICE: Any = {"retries": 1, "retry_policy": retry_policy(timedelta(seconds=1))}


@dag(schedule=None, params={"hostfile": Param("", type="string")})
def retried() -> None:
    TorchDistributedOperator(task_id="bug", command="exit 3", nproc_per_node=1, **TWICE)
    TorchDistributedOperator(
        task_id="nowhere", command="true", hostfile="{{ params.hostfile }}", **TWICE
    )

    @task(**TWICE)
    def lost(ti: Any = None) -> None:
        if ti.try_number == 1:
            raise NodeLost("gpu2 was lost", host="gpu2")

    lost()


retried()
