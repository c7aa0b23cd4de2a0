"""Ranks that wait until they are ended, for tests that end them."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import Param, dag

from distributed_training.operators.torch import TorchDistributedOperator


@dag(schedule=None, params={"failing_rank": Param(None, type=["null", "integer"])})
def waiting_ranks() -> None:
    TorchDistributedOperator(
        task_id="wait",
        source_dir=str(Path(__file__).with_suffix("")),
        script="wait.py",
        arguments=["{{ params.failing_rank }}"],
        grace_period=3,
    )


waiting_ranks()
