"""Tasks that start at the same moment, where there is room for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_training.errors import SlotsBusy
from tests.integration.tasks import Task

if TYPE_CHECKING:
    from tests.conftest import JobsOn
    from tests.fleet import Fleet


def test_tasks_that_plan_for_the_same_slots_share_what_there_is(
    jobs_on: JobsOn, fleet: Fleet
) -> None:
    jobs_on(fleet, slots=6)
    tasks = [Task(nproc_per_node=2).start() for _ in range(3)]
    assert [task.wait()["restarts"] for task in tasks] == [0, 0, 0]


def test_a_task_gives_up_at_once_where_there_is_no_room(jobs_on: JobsOn, fleet: Fleet) -> None:
    jobs_on(fleet, slots=2)
    tasks = [Task("sleep 12", nproc_per_node=2).start() for _ in range(2)]
    results = []
    for task in tasks:
        try:
            results.append(task.wait()["state"])
        except SlotsBusy:
            results.append("busy")
    assert sorted(results) == ["busy", "success"]
