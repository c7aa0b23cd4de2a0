"""What happens to a training when a part of Airflow dies."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.airflow import AirflowStack
    from dev.rest import Run


def test_a_new_triggerer_goes_on_where_the_killed_one_was(
    trigger: Callable[..., Run], airflow: AirflowStack
) -> None:
    run = trigger("waiting_ranks")
    run.wait_for_line("wait", "[rank 3 gpu2] second 15")
    killed = time.time()
    airflow.kill("triggerer")
    airflow.restart("triggerer")
    # Airflow gives a triggerer up after half a minute.
    run.wait_for_line("wait", "[rank 3 gpu2] second 60", timeout=180)
    assert run.tasks()["wait"] == "deferred"
    shown = re.findall(r"^\[rank 3 gpu2\] second (\d+)$", "\n".join(run.log("wait")), re.MULTILINE)
    assert set(map(int, shown)) >= set(range(61))
    page = run.xcom("wait", "training")
    assert [rank["state"] for rank in page["ranks"]] == ["running"] * 4
    times = [when for when, _ in page["usage"]["gpu2"]["memory"]]
    assert times[0] < killed < times[-1]  # curves go on where they were, too
