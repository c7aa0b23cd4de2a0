"""Ranks that hold all slots for a while, for tests of tasks that wait for them."""

from __future__ import annotations

from airflow.sdk import Param, dag

from distributed_training.operators.torch import TorchDistributedOperator


@dag(schedule=None, params={"seconds": Param(1, type="integer")})
def queueing_ranks() -> None:
    TorchDistributedOperator(
        task_id="train",
        command="echo begins; exec sleep {{ params.seconds }}",
        queue_timeout=600,
        grace_period=3,
    )


queueing_ranks()
