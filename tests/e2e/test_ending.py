"""What a user ends in Airflow ends on the hosts, and what fails there is told in Airflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run
    from tests.fleet import Fleet

    Trigger = Callable[..., Run]


# The worker watches ten seconds, then the triggerer does.
SEEN_BY = {"running": "[rank 3 gpu2] second 1", "deferred": "[rank 3 gpu2] second 15"}


@pytest.mark.parametrize(
    ("state", "mark"), [("running", "failed"), ("deferred", "failed"), ("deferred", "success")]
)
def test_marking_a_task_leaves_no_rank_on_the_hosts(
    trigger: Trigger, fleet: Fleet, wait_until_idle: Callable[[], None], state: str, mark: str
) -> None:
    """B25, B36: the ranks have children, and are deaf to SIGTERM."""
    run = trigger("waiting_ranks")
    run.wait_for_line("wait", SEEN_BY[state])
    assert run.tasks()["wait"] == state
    assert len(ranks(fleet)) == 4
    run.mark("wait", mark)
    wait_until_idle()
    assert run.wait() == mark


def test_clearing_a_deferred_task_starts_it_anew_after_its_ranks_are_gone(
    trigger: Trigger, fleet: Fleet
) -> None:
    run = trigger("waiting_ranks")
    run.wait_for_line("wait", SEEN_BY["deferred"])
    before = ranks(fleet)
    run.clear("wait")
    run.wait_for_line("wait", SEEN_BY["running"], try_number=2)
    assert len(ranks(fleet)) == 4
    assert ranks(fleet).keys().isdisjoint(before)


def test_a_failing_rank_ends_all_and_its_verdict_is_the_last_word(
    trigger: Trigger, wait_until_idle: Callable[[], None]
) -> None:
    """B32."""
    run = trigger("waiting_ranks", failing_rank=3)
    assert run.wait() == "failed"
    wait_until_idle()
    log = run.log("wait")
    start = max(n for n, line in enumerate(log) if line.startswith("rank 3 on gpu2 exited with"))
    verdict = log[start:]
    assert "exited with status 1 after" in verdict[0]
    assert "  Traceback (most recent call last):" in verdict
    assert "  ValueError: no digit is like this one" in verdict
    assert not any(line.startswith("[rank ") for line in verdict)


def ranks(fleet: Fleet) -> dict[tuple[str, int], str]:
    """Return the commands of all ranks by host and pid, as seen from outside of the hosts."""
    return {
        (host.name, process.pid): process.command
        for host in fleet.hosts
        for process in host.processes()
        if "wait.py" in process.command
    }
