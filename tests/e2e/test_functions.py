"""Functions as tasks in a real Airflow: mapped, deferred, and with what they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run


def test_values_of_functions_go_from_task_to_task(trigger: Callable[..., Run]) -> None:
    run, failing = trigger("functions"), trigger("functions", fails=True)
    assert run.wait() == "success"
    assert run.xcom("count") == [1, 2]
    assert run.xcom("count", "job")["world_size"] == 2
    assert run.xcom("add") == 5
    run.wait_for_line("count", f"] rank 1 counts to 3 in {run.run_id}")
    assert "the triggerer watches it" in run.story("count")
    assert failing.wait() == "failed"
    assert failing.tasks()["count"] == "failed"
    failing.wait_for_line("count", "dt_function/count.py")
    failing.wait_for_line("count", "KeyError: 'four'")
