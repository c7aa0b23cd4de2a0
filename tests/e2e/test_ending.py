"""What a user ends in Airflow ends on the hosts, and what fails there is told in Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dev.rest import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run
    from tests.fleet import Fleet

    Trigger = Callable[..., Run]


@pytest.mark.parametrize(
    ("state", "mark"), [("running", "failed"), ("deferred", "failed"), ("deferred", "success")]
)
def test_marking_a_task_leaves_no_rank_on_the_hosts(
    trigger: Trigger, fleet: Fleet, state: str, mark: str
) -> None:
    run = trigger("waiting_ranks")
    run.wait_for_line("wait", "[rank 3 gpu2] waits")
    run.wait_for_task("wait", state)
    assert len(ranks(fleet)) == 4
    run.mark("wait", mark)
    wait_until_gone(fleet)
    assert run.wait() == mark


def test_a_failing_rank_ends_all_and_its_verdict_is_the_last_word(
    trigger: Trigger, fleet: Fleet
) -> None:
    run = trigger("waiting_ranks", failing_rank=3)
    assert run.wait() == "failed"
    wait_until_gone(fleet)
    log = "\n".join(run.log("wait"))
    verdict = log[log.rindex("rank 3 on gpu2") :]
    assert "1" in verdict.splitlines()[0]
    assert "Traceback (most recent call last)" in verdict
    assert "ValueError: no digit is like this one" in verdict


def wait_until_gone(fleet: Fleet, grace_period: float = 3) -> None:
    for _ in until(grace_period + 10, "ranks of an ended task live on"):
        if not ranks(fleet):
            return


def ranks(fleet: Fleet) -> list[str]:
    """Return the commands of all ranks, as they are seen from outside of the hosts."""
    processes = [process for host in fleet.hosts for process in host.processes()]
    return [process.command for process in processes if "wait.py" in process.command]
