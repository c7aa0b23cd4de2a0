"""A task that records what it is told to, as a training would, and prints what it is told to."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from airflow.sdk import Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

PARAMS = {
    "training": Param(None, type=["object", "null"]),
    "plan": Param(None, type=["object", "null"]),
    "lines": Param([], type="array"),
    "until": Param(None, type=["string", "null"], title="Run until this file is there"),
    "fail": Param(False, type="boolean"),
}


@dag(schedule=None, params=PARAMS, tags=["test"], doc_md=__doc__)
def told() -> None:
    """One task that may be a training, and one that never is."""
    train()
    other()


@task
def train() -> None:
    """Record what the run was given."""
    context = get_current_context()
    params, log = context["params"], logging.getLogger("training")
    for key, name in {"training": "training", "training_plan": "plan"}.items():
        if params[name]:
            context["ti"].xcom_push(key=key, value=params[name])
    for line in params["lines"]:
        log.info("%s", line)
    while params["until"] and not Path(params["until"]).exists():
        time.sleep(0.5)
    if params["fail"]:
        raise AirflowFailException("the job failed")


@task
def other() -> None:
    """Be no training."""


told()
