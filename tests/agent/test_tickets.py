"""Of the jobs that wait for a slot, the one that wished for it first goes first."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.host import Host, Job, as_user, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.conftest import NewJob

SLOTS = ["cpu-0"]


def wish(job: Job, since: float, slots: list[str] | None = SLOTS) -> dict[str, Any]:
    """Return what a request says of a job that may wait."""
    return {"job": job.key["job"], "since": since, "place": "gpu1", "slots": slots, "label": {}}


def refused(job: Job, since: float | None) -> dict[str, dict[str, object]]:
    """Ask for the slots in vain; return who is in the way."""
    answer = job.prepare(slots=SLOTS, since=since, place="gpu1")
    assert answer["error"]["kind"] == "slots_busy", answer
    holders: dict[str, dict[str, object]] = answer["error"]["holders"]
    return holders


def stop(job: Job) -> None:
    job.call("stop", reason="enough", owner=None, wait=30)
    until(lambda: all(who.get("waiting") for who in job.host.call("offer")["busy"].values()))


@pytest.fixture
def waiting(job: Job, new_job: NewJob) -> Job:
    """A job that was refused, and waits since the time 100; the slots are free again."""
    job.prepare(slots=SLOTS)
    waiter = new_job()
    assert refused(waiter, since=100)["cpu-0"]["job"] == job.key["job"]
    stop(job)
    return waiter


def tickets(host: Host) -> list[Path]:
    return list((host.locks / "tickets").iterdir())


def test_a_job_that_came_later_leaves_the_slot_to_the_one_that_waits(
    waiting: Job, new_job: NewJob
) -> None:
    for since in (101, None):
        holder = refused(new_job(), since)["cpu-0"]
        assert (holder["job"], holder["waiting"]) == (waiting.key["job"], True)
    assert waiting.prepare(slots=SLOTS, since=100, place="gpu1")["ok"]


def test_a_job_that_came_earlier_need_not_wait_for_later_ones(
    waiting: Job, new_job: NewJob
) -> None:
    assert new_job().prepare(slots=SLOTS, since=99, place="gpu1")["ok"]


def test_a_job_that_has_started_waits_no_more(waiting: Job, new_job: NewJob) -> None:
    waiting.prepare(slots=SLOTS, since=100, place="gpu1")
    waiting.start("pass")
    assert tickets(waiting.host) == []
    waiting.journal()
    until(lambda: not waiting.host.call("offer")["busy"])
    assert new_job().prepare(slots=SLOTS)["ok"]


def test_an_offer_tells_what_others_wait_for_first(waiting: Job, new_job: NewJob) -> None:
    host, late = waiting.host, new_job()
    assert host.call("offer")["busy"]["cpu-0"]["waiting"]
    assert host.call("offer", **wish(late, 101, None))["busy"]["cpu-0"]["waiting"]
    assert host.call("offer", **wish(late, 99, None))["busy"] == {}
    assert host.call("offer", **wish(waiting, 100, None))["busy"] == {}


def test_a_job_that_nobody_renews_for_a_minute_blocks_none(waiting: Job, new_job: NewJob) -> None:
    (ticket,) = tickets(waiting.host)
    os.utime(ticket, (time.time() - 61, time.time() - 61))
    waiting.host.call("offer", **wish(waiting, 100))
    refused(new_job(), since=None)
    os.utime(ticket, (time.time() - 61, time.time() - 61))
    assert new_job().prepare(slots=SLOTS, since=101, place="gpu1")["ok"]


def test_a_wish_can_change_and_be_taken_back(waiting: Job, new_job: NewJob) -> None:
    waiting.host.call("offer", **wish(waiting, 100, ["cpu-1"]))
    assert list(waiting.host.call("offer")["busy"]) == ["cpu-1"]
    waiting.host.call("offer", **wish(waiting, 100, []))
    assert tickets(waiting.host) == []


def test_two_nodes_of_a_job_on_one_machine_wait_side_by_side(job: Job) -> None:
    job.host.call("offer", **{**wish(job, 100, ["cpu-0"]), "place": "gpu1"})
    job.host.call("offer", **{**wish(job, 100, ["cpu-1"]), "place": "gpu2"})
    assert sorted(job.host.call("offer")["busy"]) == ["cpu-0", "cpu-1"]
    assert job.host.call("offer", **wish(job, 100, None))["busy"] == {}


def test_jobs_of_one_name_in_two_roots_are_two(waiting: Job, tmp_path: Path) -> None:
    """Two Airflow installations run the same DAG on the same hosts."""
    other = Host(tmp_path / "other", waiting.host.locks)
    assert other.call("offer", **wish(waiting, 101, None))["busy"]["cpu-0"]["waiting"]


def test_users_of_a_host_wait_in_one_queue(new_job: NewJob, shared: Path) -> None:
    """Root alone can act as two users, so this needs root, as the test hosts do."""
    one, other = as_user(65001, shared), as_user(65002, shared)
    first, second = new_job(one), new_job(other)
    first.prepare(slots=SLOTS)
    refused(second, since=100)
    stop(first)
    assert refused(new_job(one), since=101)["cpu-0"]["user"] == "65002"
    assert len(tickets(one)) == 2
    assert second.prepare(slots=SLOTS, since=100, place="gpu1")["ok"]


def test_files_that_are_no_tickets_are_passed_over(waiting: Job, new_job: NewJob) -> None:
    folder = waiting.host.locks / "tickets"
    (folder / "text").write_text("no ticket")
    (folder / "odd").write_text('{"since": [], "job": 3, "slots": {"a": null}}')
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    assert refused(new_job(), since=101)["cpu-0"]["job"] == waiting.key["job"]


def test_an_attempt_that_never_started_can_be_prepared_again(job: Job) -> None:
    """Another host had refused it, and this one was let go."""
    job.prepare(slots=SLOTS)
    job.call("stop", reason="not started", owner=None, wait=30)
    assert job.prepare(slots=SLOTS)["ok"]
    job.start("import time; time.sleep(600)")
    job.call("stop", reason="not started", owner=None, wait=30)
    assert job.prepare(slots=SLOTS)["error"]["kind"] == "ended"
