"""What we rely on, or guard against, in the installed Airflow; a change here is worth a look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dev.rest import until
from tests.e2e.probe import KILL, times

if TYPE_CHECKING:
    from pathlib import Path

    from dev.airflow import AirflowStack


def test_a_clear_waits_for_no_kill_and_a_kill_is_cut_short(
    airflow: AirflowStack, tmp_path: Path
) -> None:
    run = airflow.api.trigger("probed", {"folder": str(tmp_path)})
    for _ in until(60, "the trigger does not run"):
        if times(tmp_path, "watched"):
            break
    run.clear("wait")
    for _ in until(60, "the task is not started anew, or the trigger not killed"):
        if len(times(tmp_path, "executed")) == 2 and times(tmp_path, "kill began"):
            break
    began = times(tmp_path, "kill began")[0]
    assert times(tmp_path, "executed")[1] < began + KILL
    time.sleep(max(0.0, began + KILL + 1 - time.time()))
    assert not times(tmp_path, "kill finished")
    run.fail()
