"""A slot belongs to one job until no process of that job lives."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

from tests.agent.host import Job, alive, as_user, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.conftest import NewJob

SLOTS = ["gpu-GPU-1", "cpu-0"]


def test_a_slot_in_use_is_refused_with_its_holder(job: Job, new_job: NewJob) -> None:
    job.prepare(slots=SLOTS, label={"dag": "train"})
    error = new_job().prepare(slots=["cpu-1", "cpu-0"])["error"]
    assert error["kind"] == "slots_busy"
    assert list(error["holders"]) == ["cpu-0"]
    holder = error["holders"]["cpu-0"]
    assert (holder["job"], holder["label"]) == (job.key["job"], {"dag": "train"})
    assert holder["user"]
    assert holder["since"]


def test_a_refused_job_leaves_nothing_and_may_try_again(job: Job, new_job: NewJob) -> None:
    job.prepare(slots=SLOTS)
    late = new_job()
    late.prepare(slots=["cpu-1", "cpu-0"])
    assert not late.path.exists()
    assert new_job().prepare(slots=["cpu-1"])["ok"]
    job.call("stop", reason="enough", owner=None, wait=30)
    assert late.prepare(slots=["cpu-0"])["ok"]


def test_an_offer_tells_who_holds_what(job: Job) -> None:
    assert job.host.call("offer")["busy"] == {}
    job.prepare(slots=SLOTS)
    busy = job.host.call("offer")["busy"]
    assert {name: holder["job"] for name, holder in busy.items()} == dict.fromkeys(
        SLOTS, job.key["job"]
    )


def test_a_slot_is_free_once_its_job_has_ended(job: Job, new_job: NewJob) -> None:
    job.run("pass", slots=SLOTS)
    until(lambda: not job.host.call("offer")["busy"])
    assert new_job().prepare(slots=SLOTS)["ok"]


def test_an_ended_job_leaves_no_lock_file(job: Job) -> None:
    job.run("pass", slots=SLOTS, ports=job.host.call("offer")["ports"][:2])
    until(lambda: not list(job.host.locks.glob("*.lock")))


def test_a_slot_stays_taken_while_a_rank_outlives_its_agents(job: Job, new_job: NewJob) -> None:
    job.prepare(slots=SLOTS)
    rank = job.start("import time; time.sleep(600)")["pids"]["rank-0"]
    for agent in reversed(job.agents()):
        os.kill(agent, signal.SIGKILL)
    until(lambda: not any(map(alive, job.agents())))
    assert new_job().prepare(slots=SLOTS)["error"]["kind"] == "slots_busy"
    os.kill(rank, signal.SIGKILL)
    until(lambda: not alive(rank))
    assert new_job().prepare(slots=SLOTS)["ok"]


def test_a_shell_that_uses_low_descriptors_keeps_its_slot(job: Job) -> None:
    job.prepare(slots=SLOTS)
    rank = job.rank(0, "")
    rank["argv"] = ["/bin/sh", "-c", "exec 3</dev/null 4<&3 9<&3; echo up; exec sleep 600"]
    job.start(processes=[rank], ranks=[0])
    job.wait_for("up")
    for agent in reversed(job.agents()):
        os.kill(agent, signal.SIGKILL)
    until(lambda: not any(map(alive, job.agents())))
    assert list(job.host.call("offer")["busy"]) == sorted(SLOTS)


def test_of_jobs_that_race_for_a_slot_one_wins(job: Job, new_job: NewJob) -> None:
    racers = [new_job() for _ in range(6)]
    calls = [each.host.open("prepare", **each.key, slots=SLOTS)[0] for each in racers]
    answers = [call.communicate()[0] for call in calls]
    assert sum(b'"ok":true' in answer for answer in answers) == 1
    assert sum(b'"slots_busy"' in answer for answer in answers) == 5


def test_preparing_twice_is_preparing_once(job: Job) -> None:
    calls = [job.host.open("prepare", **job.key, slots=SLOTS)[0] for _ in range(4)]
    answers = [call.communicate()[0] for call in calls]
    assert all(b'"ok":true' in answer for answer in answers)
    assert sum(b'"already":true' in answer for answer in answers) == 3


def test_an_attempt_that_has_ended_cannot_be_prepared_again(job: Job) -> None:
    job.run("pass")
    assert job.prepare()["error"]["kind"] == "ended"


def test_users_of_a_host_share_its_slots(new_job: NewJob, shared: Path) -> None:
    """Root alone can act as two users, so this needs root, as the test hosts do."""
    users = [as_user(65001, shared), as_user(65002, shared)]
    first, second = (new_job(user) for user in users)
    assert first.prepare(slots=SLOTS)["ok"]
    error = second.prepare(slots=SLOTS)["error"]
    assert error["holders"]["cpu-0"]["user"] == "65001"
    first.call("stop", reason="enough", owner=None, wait=30)
    assert second.prepare(slots=SLOTS)["ok"]


def test_a_lock_file_that_was_cleaned_away_is_made_anew(job: Job, new_job: NewJob) -> None:
    job.prepare(slots=SLOTS)
    job.call("stop", reason="enough", owner=None, wait=30)
    subprocess.run(["rm", "-r", str(job.host.locks)], check=True)
    assert new_job().prepare(slots=SLOTS)["ok"]
    assert job.host.locks.stat().st_mode & 0o7777 == 0o1777
    assert {path.stat().st_mode & 0o777 for path in job.host.locks.iterdir()} == {0o666}
