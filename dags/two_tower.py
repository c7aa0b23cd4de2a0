"""Teach a recommender of two towers who likes what: Lightning, with data of MosaicML Streaming.

A DAG to copy, with the folder `two_tower/` beside it. It needs a `gpu_fleet` connection, and on the
hosts a Python with lightning and mosaicml-streaming.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from distributed_training.operators.torch import TorchDistributedOperator

FILES = Path(__file__).parent / "two_tower"
MODEL = "outputs/model.pt"
FOLDER = "{{ params.folder }}/{{ run_id }}"
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()

PARAMS = {
    "epochs": Param(20, type="integer", minimum=1, section="Training"),
    "lr": Param(0.05, type="number", exclusiveMinimum=0, title="Learning rate", section="Training"),
    "seed": Param(0, type="integer", description="Same seed, same model", section="Training"),
    "nnodes": Param(None, type=["null", "integer"], title="Hosts (empty: all)", section="Size"),
    "nproc_per_node": Param(
        "auto", type=["string", "integer"], title="Ranks a host", section="Size"
    ),
    "hosts": Param(None, type=["null", "string"], title="Only these, as gpu1@gpu2", section="Size"),
    "python": Param(
        None, type=["null", "string"], title="Python on the hosts (empty: the connection's)",
        section="Places",
    ),
    "fleet_conn_id": Param("gpu_fleet_default", type="string", title="Fleet", section="Places"),
    # With several workers this has to be a folder that all of them see.
    "folder": Param(f"{HOME}/two_tower", type="string", title="Folder", section="Places"),
}  # fmt: skip


@dag(
    schedule=None,
    params=PARAMS,
    render_template_as_native_obj=True,  # numbers stay numbers, and an empty field is None
    tags=["training", "torch", "lightning"],
    doc_md=__doc__,
)
def two_tower() -> None:
    """Write the data on one host, and train on all."""
    prepare = TorchDistributedOperator(
        task_id="prepare",
        fleet_conn_id="{{ params.fleet_conn_id }}",
        source_dir=str(FILES),
        script="prepare.py",
        arguments={"seed": "{{ params.seed }}"},
        nnodes=1,
        nproc_per_node=1,
        hosts="{{ params.hosts }}",
        python="{{ params.python }}",
        outputs=["likes", "train.py"],  # data and script, which are what the training needs
        output_dir=f"{FOLDER}/source",
    )
    train = TorchDistributedOperator(
        task_id="train",
        fleet_conn_id="{{ params.fleet_conn_id }}",
        source_dir=f"{FOLDER}/source",
        script="train.py",
        arguments={
            "epochs": "{{ params.epochs }}",
            "lr": "{{ params.lr }}",
            "seed": "{{ params.seed }}",
        },
        nnodes="{{ params.nnodes }}",
        nproc_per_node="{{ params.nproc_per_node }}",
        hosts="{{ params.hosts }}",
        python="{{ params.python }}",
        outputs=[MODEL],
        output_dir=FOLDER,
        log_dir=f"{FOLDER}/logs",
    )
    prepare >> train
    report(train.output)


@task
def report(trained: Any) -> dict[str, Any]:
    """Log what a reader of the run wants to know, and return it."""
    summary = {
        "hosts": trained["hosts"],
        "world_size": trained["world_size"],
        "loss": trained["result"]["loss"],
        "accuracy": trained["result"]["accuracy"],
        "model": trained["outputs"][MODEL],
        "logs": trained["log_dir"],
    }
    for name, value in summary.items():
        logging.getLogger(__name__).info("%s: %s", name, value)
    return summary


two_tower()
