"""Functions that ranks call: their values go from task to task."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, task

OPTIONS: Any = {"nnodes": 1, "queue_timeout": 60, "grace_period": 3}


@dag(schedule=None, params={"fails": Param(False, type="boolean")})
def functions():
    @task.torch_distributed(nproc_per_node=2, **OPTIONS)
    def count(to, run_id=None, params=None):
        import os
        import time

        print(f"rank {os.environ['RANK']} counts to {to} in {run_id}")
        time.sleep(12)  # longer than a worker watches: the task is deferred
        if params and params["fails"] and os.environ["RANK"] == "1":
            raise KeyError("four")
        return list(range(1, int(to)))

    @task.torch_distributed(nproc_per_node=1, multiple_outputs=True, **OPTIONS)
    def square(number):
        return {"number": number, "square": number**2}

    @task
    def add(squares):
        return sum(each["square"] for each in squares)

    add(square.expand(number=count("{{ 3 }}")))


functions()
