"""What the web page is shown of real jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import RankFailed
from distributed_training.run.picture import KEY
from tests.integration.tasks import Task

if TYPE_CHECKING:
    from tests.conftest import JobsOn
    from tests.fleet import Fleet

MEASURED = """
[ "$RANK" = 0 ] && printf '{"loss": 2.5, "step": 1}\\n' >> "$DT_METRICS_FILE"
[ "$RANK" = 0 ] && printf '{"loss": 0.5, "step": 2}\\n' >> "$DT_METRICS_FILE"
sleep 12
"""
PARTED = 'if [ "$RANK" = 3 ]; then echo "no more batches" >&2; exit 5; fi; sleep 600'


def pictures(command: str) -> tuple[Task, list[dict[str, Any]]]:
    """Return a task that has ended, and all that was shown of it."""
    shown: list[dict[str, Any]] = []

    def push(key: str, value: Any) -> None:
        if key == KEY:
            shown.append(json.loads(json.dumps(value, allow_nan=False)))

    task = Task(command, deferrable=False, nproc_per_node=2)
    task.context["ti"].xcom_push = push
    try:
        task.start().wait()
    except RankFailed as error:
        task.error = error
    return task, shown


@pytest.fixture
def jobs(jobs_on: JobsOn, fleet: Fleet) -> None:
    """Tasks run on two hosts of two slots."""
    jobs_on(fleet, slots=2)


@pytest.mark.usefixtures("jobs")
def test_a_job_is_shown_while_it_runs_and_when_it_has_ended() -> None:
    _, shown = pictures(MEASURED)
    running, last = shown[-2], shown[-1]
    assert [rank["state"] for rank in running["ranks"]] == ["running"] * 4
    assert [(rank["host"], rank["slot"]) for rank in running["ranks"]] == [
        ("gpu1", "cpu-0"), ("gpu1", "cpu-1"), ("gpu2", "cpu-0"), ("gpu2", "cpu-1"),
    ]  # fmt: skip
    assert all(rank["started"] for rank in running["ranks"])
    assert [point[1:] for point in running["series"]["loss"]] == [[1, 2.5], [2, 0.5]]
    for host, ranks in (("gpu1", {"0", "1"}), ("gpu2", {"2", "3"})):
        used = running["usage"][host]
        assert used["ranks"].keys() == ranks
        assert 0 < used["memory"][-1][1] < used["memory_total"]
    assert (last["state"], last["verdict"]) == ("success", None)
    assert [(rank["state"], rank["code"]) for rank in last["ranks"]] == [("ended", 0)] * 4
    assert last["series"] == running["series"]


@pytest.mark.usefixtures("jobs")
def test_the_rank_that_failed_is_shown_among_those_that_were_ended() -> None:
    task, shown = pictures(PARTED)
    last = shown[-1]
    assert isinstance(task.error, RankFailed)
    assert [rank["state"] for rank in last["ranks"]] == ["stopped"] * 3 + ["failed_first"]
    assert last["ranks"][3]["code"] == 5
    assert last["verdict"]["rank"] == 3
    assert "no more batches" in last["verdict"]["message"]
