"""Ranks that print all that they know, for a test that looks for their secret everywhere."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import Param, dag

from distributed_training.operators.torch import TorchDistributedOperator

FOLDER = Path(__file__).with_suffix("")


def note_failure(context) -> None:  # type: ignore[no-untyped-def]
    """Leave what a callback is told."""
    error = context["exception"]
    told = f"{type(error).__name__} {error.host} {error.rank} {error.exit_code}\n"
    with Path(context["params"]["told"]).open("a") as file:
        file.write(told)


@dag(
    schedule=None, params={"told": Param("/dev/null"), "logs": Param(None, type=["null", "string"])}
)
def secret_env() -> None:
    TorchDistributedOperator(
        task_id="tell",
        command=["bash", "-c", "set -x; env; sleep 14; echo again $HF_TOKEN; env >&2; exit 3"],
        nnodes=2,
        nproc_per_node=1,
        env={"HF_TOKEN": "{{ conn.hf.password }}", "STORE": "s3://me:{{ conn.hf.password }}@host"},
        log_dir="{{ params.logs }}",
        grace_period=3,
        on_failure_callback=note_failure,
    )


secret_env()
