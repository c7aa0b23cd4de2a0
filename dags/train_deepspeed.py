"""Train a digit classifier with DeepSpeed's ZeRO under mpirun, and judge it.

A DAG to copy, with the folder `train_deepspeed/` beside it. It needs a `gpu_fleet` connection, on
the hosts an MPI and a Python with DeepSpeed, and numpy and scikit-learn (which brings the digits)
where Airflow's tasks run: `pip install airflow-provider-distributed-training[examples]`.

Hosts without GPUs need a compiler, too: there DeepSpeed compiles a part of itself at its first
start, which takes minutes.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from airflow.sdk import ObjectStoragePath, Param, dag, task

from distributed_training.operators.mpi import MpiTrainOperator

SCRIPT = Path(__file__).parent / "train_deepspeed" / "train.py"
MODEL = "outputs/model.npz"
FOLDER = "{{ params.folder }}/{{ run_id }}"
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()

PARAMS = {
    "epochs": Param(20, type="integer", minimum=1, section="Training"),
    "lr": Param(0.01, type="number", exclusiveMinimum=0, title="Learning rate", section="Training"),
    "stage": Param(1, enum=[0, 1, 2, 3], title="Stage of ZeRO", section="Training"),
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
    "setup": Param(
        None, type=["null", "string"], title="Shell commands on each host before", section="Places"
    ),
    "fleet_conn_id": Param("gpu_fleet_default", type="string", title="Fleet", section="Places"),
    # With several workers this has to be a folder that all of them see.
    "folder": Param(f"{HOME}/train_deepspeed", type="string", title="Folder", section="Places"),
}  # fmt: skip


@dag(
    schedule=None,
    params=PARAMS,
    render_template_as_native_obj=True,  # numbers stay numbers, and an empty field is None
    tags=["training", "mpi", "deepspeed"],
    doc_md=__doc__,
)
def train_deepspeed() -> None:
    """Prepare the data here, train on the hosts, and bring the model back to be judged here."""
    source = prepare(FOLDER, "{{ params.seed }}")
    train = MpiTrainOperator(
        task_id="train",
        fleet_conn_id="{{ params.fleet_conn_id }}",
        source_dir=source,
        script="train.py",
        arguments={
            "epochs": "{{ params.epochs }}",
            "lr": "{{ params.lr }}",
            "stage": "{{ params.stage }}",
            "seed": "{{ params.seed }}",
        },
        nnodes="{{ params.nnodes }}",
        nproc_per_node="{{ params.nproc_per_node }}",
        hosts="{{ params.hosts }}",
        python="{{ params.python }}",
        setup="{{ params.setup }}",
        outputs=[MODEL],
        output_dir=FOLDER,
        log_dir=f"{FOLDER}/logs",
    )
    report(train.output, evaluate(train.output, FOLDER))


@task
def prepare(folder: str, seed: Any) -> str:
    """Split the digits; return the folder that goes to the hosts: the script and its data."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = x.astype("float32") / 16
    split = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    x_train, x_unseen, y_train, y_unseen = split
    source = Path(folder, "source")
    source.mkdir(parents=True, exist_ok=True)
    shutil.copy(SCRIPT, source)
    np.savez(source / "train.npz", x=x_train, y=y_train)
    np.savez(Path(folder, "unseen.npz"), x=x_unseen, y=y_unseen)
    return str(source)


@task
def evaluate(trained: Any, folder: str) -> float:
    """Return the share of unseen digits that the model which came back gets right."""
    import numpy as np

    model = np.load(io.BytesIO(ObjectStoragePath(trained["outputs"][MODEL]).read_bytes()))
    unseen = np.load(Path(folder, "unseen.npz"))
    hidden = np.maximum(unseen["x"] @ model["0.weight"].T + model["0.bias"], 0)
    guesses = (hidden @ model["2.weight"].T + model["2.bias"]).argmax(axis=1)
    return round(float((guesses == unseen["y"]).mean()), 4)


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


train_deepspeed()
