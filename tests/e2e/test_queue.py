"""Two runs that want the same slots, in Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run

    Trigger = Callable[..., Run]


def test_a_run_waits_deferred_for_slots_that_another_holds(trigger: Trigger) -> None:
    first = trigger("queueing_ranks", seconds=600)
    first.wait_for_line("train", "[rank 3 gpu2] begins")
    second = trigger("queueing_ranks", seconds=1)
    line = second.wait_for_line("train", "Waiting for slots: gpu1 cpu-0, cpu-1 held by job")
    assert f"run {first.run_id}" in line
    assert second.tasks()["train"] == "deferred"
    first.mark("train", "success")
    assert second.wait() == "success", second.story("train")
    log = second.log("train")
    assert log.index(line) < log.index("[rank 0 gpu1] begins")
