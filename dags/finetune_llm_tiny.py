"""Teach a tiny language model to count with TRL, and ask it how texts go on that it has not seen.

A DAG to copy, with the folder `finetune_llm_tiny/` beside it. It needs a `gpu_fleet` connection,
and on the hosts a Python with trl. Nothing is taken from a hub: the model starts from nothing.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from distributed_training.operators.torch import TorchDistributedOperator

FILES = Path(__file__).parent / "finetune_llm_tiny"  # the script, and what kind of model it is
MODEL = "outputs/model"
FOLDER = "{{ params.folder }}/{{ run_id }}"
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]

PARAMS = {
    "epochs": Param(20, type="integer", minimum=1, section="Training"),
    "lr": Param(0.01, type="number", exclusiveMinimum=0, title="Learning rate", section="Training"),
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
    "folder": Param(f"{HOME}/finetune_llm_tiny", type="string", title="Folder", section="Places"),
}  # fmt: skip


@dag(
    schedule=None,
    params=PARAMS,
    render_template_as_native_obj=True,  # numbers stay numbers, and an empty field is None
    tags=["training", "torch", "trl"],
    doc_md=__doc__,
)
def finetune_llm_tiny() -> None:
    """Write texts here, train on the hosts, and judge here what the model says."""
    source = prepare(FOLDER, "{{ params.seed }}")
    train = TorchDistributedOperator(
        task_id="train",
        fleet_conn_id="{{ params.fleet_conn_id }}",
        source_dir=source,
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
        env={"HF_HUB_OFFLINE": "1"},
        outputs=[MODEL],
        output_dir=FOLDER,
        log_dir=f"{FOLDER}/logs",
    )
    report(train.output, evaluate(train.output, FOLDER))


@task
def prepare(folder: str, seed: Any) -> str:
    """Write texts that count; return the folder that goes to the hosts."""
    texts = [
        " ".join(NUMBERS[(first + step) % 10] for step in range(length))
        for first in range(10)
        for length in range(3, 11)
    ]
    random.Random(seed).shuffle(texts)
    unseen, seen = texts[:16], texts[16:]
    questions, answers = zip(*(text.rsplit(" ", 1) for text in unseen), strict=True)
    source = Path(folder, "source")
    shutil.copytree(FILES, source, dirs_exist_ok=True)
    (source / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in seen))
    (source / "questions.json").write_text(json.dumps(questions))
    Path(folder, "answers.json").write_text(json.dumps(answers))
    return str(source)


@task
def evaluate(trained: Any, folder: str) -> float:
    """Return the share of unseen texts that the model has ended as it should."""
    right = json.loads(Path(folder, "answers.json").read_text())
    said = trained["result"]["answers"]
    return sum(a == b for a, b in zip(said, right, strict=True)) / len(right)


@task
def report(trained: Any, accuracy: Any) -> dict[str, Any]:
    """Log what a reader of the run wants to know, and return it."""
    summary = {
        "hosts": trained["hosts"],
        "world_size": trained["world_size"],
        "loss": trained["result"]["loss"],
        "accuracy": accuracy,
        "model": trained["outputs"][MODEL],
        "logs": trained["log_dir"],
    }
    for name, value in summary.items():
        logging.getLogger(__name__).info("%s: %s", name, value)
    return summary


finetune_llm_tiny()
