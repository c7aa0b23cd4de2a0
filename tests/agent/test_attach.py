"""A journal is read to its last byte, over as many connections as it takes."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from itertools import count, islice

import pytest

from tests.agent.host import Job, Watcher, texts, until

CHATTY = """
    import time
    for n in range(2000):
        print("line", n)
        if n % 100 == 0:
            time.sleep(0.05)
"""


def test_nothing_is_lost_or_doubled_over_many_cut_connections(job: Job) -> None:
    job.prepare()
    job.start(CHATTY)
    offset, seen = 0, []
    for patience in count(1):
        watcher = Watcher(job, offset=offset)
        seen += list(islice(watcher.lines(), random.randint(1, 80 * patience)))
        offset = watcher.offset
        watcher.cut()
        if seen[-1]["k"] == "ended":
            break
    assert texts(seen) == [f"line {n}" for n in range(2000)]
    assert [json.dumps(each) for each in seen] == [json.dumps(each) for each in job.journal()]


def test_the_next_watcher_goes_on_where_the_last_one_acknowledged(job: Job) -> None:
    job.prepare()
    job.start(CHATTY)
    first = Watcher(job)
    head = list(islice(first.lines(), 50))
    acknowledged = first.offset
    first.say(f"ack {acknowledged}")
    until((job.path / "acknowledged").exists)
    list(islice(first.lines(), 70))
    first.cut()
    second = Watcher(job)
    assert second.answer["offset"] == acknowledged
    assert texts(head + list(second.lines())) == [f"line {n}" for n in range(2000)]
    second.cut()


def test_a_watcher_gets_signs_of_life_from_a_silent_job(job: Job) -> None:
    """B23."""
    job.prepare()
    job.start("import time; time.sleep(600)")
    watcher = Watcher(job, offset=0)
    lines = (json.loads(line) for line in watcher.stdout)
    assert "t" not in next(each for each in lines if each["k"] == "alive")
    watcher.cut()


def test_watching_renews_the_lease(job: Job) -> None:
    job.prepare(orphan_timeout=1)
    job.start("import time; time.sleep(600)")
    watcher = Watcher(job, offset=0)
    until_then = time.monotonic() + 2.5
    while time.monotonic() < until_then:
        watcher.say("renew")
        time.sleep(0.2)
    assert not job.events("ending")
    watcher.cut()
    assert job.journal()[-1]["reason"] == "orphaned"


def test_the_end_of_stdin_ends_the_attach_and_not_the_job(job: Job) -> None:
    job.prepare()
    job.start("import time; time.sleep(600)")
    watcher = Watcher(job)
    watcher.stdin.close()
    assert watcher.call.wait(30) == 0
    watcher.stdout.close()
    assert not job.events("ending")


def test_a_watcher_that_does_not_read_does_not_stop_the_job(job: Job) -> None:
    job.prepare()
    watcher = Watcher(job, offset=0)
    os.kill(watcher.call.pid, signal.SIGSTOP)
    job.start("for n in range(200_000): print('a line that nobody reads', n)")
    assert job.journal()[-1]["state"] == "success"
    watcher.cut()


def test_attaching_makes_a_watcher_the_owner(job: Job) -> None:
    job.prepare(owner="first")
    job.start("import time; time.sleep(600)")
    watcher = Watcher(job, owner="second")
    assert job.call("stop", reason="x", owner="first", wait=0)["state"] == "not_owner"
    assert job.call("stop", reason="x", owner="second", wait=30)["state"] == "ended"
    watcher.cut()


def test_an_offset_beyond_a_journal_that_lost_its_end_is_corrected(job: Job) -> None:
    job.run("print('hello')")
    size = (job.path / "journal.jsonl").stat().st_size
    watcher = Watcher(job, offset=10 * size)
    assert (watcher.answer["offset"], watcher.answer["size"]) == (size, size)
    watcher.cut()


def test_a_job_that_was_never_here_cannot_be_attached_to(job: Job) -> None:
    answer = job.call("attach", offset=0, owner="me")
    assert answer["error"]["kind"] == "unknown"


def test_half_a_line_that_a_killed_agent_left_is_not_shown(job: Job) -> None:
    job.prepare()
    job.start("import time; time.sleep(600)")
    until(lambda: job.events("started"))
    for agent in job.agents():
        os.kill(agent, signal.SIGSTOP)
    with (job.path / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"t":1,"k":"log","r":0,"m":"half')
    for agent in reversed(job.agents()):
        os.kill(agent, signal.SIGKILL)
    kinds = [each["k"] for each in job.journal()]
    assert kinds == ["prepared", "started", "ending", "exit", "note", "ended"]


@pytest.mark.parametrize("line", ["", "ack", "ack soon", "hello"])
def test_a_line_that_means_nothing_does_no_harm(job: Job, line: str) -> None:
    job.prepare()
    watcher = Watcher(job)
    watcher.say(line)
    job.start("print('on')")
    assert list(watcher.lines())[-1]["k"] == "ended"
    watcher.cut()


def test_a_watcher_that_was_replaced_is_let_go_and_not_let_in_again(job: Job) -> None:
    job.prepare()
    job.start(CHATTY)
    first = Watcher(job, offset=0, owner="first")
    claim = Watcher(job, offset=0, owner="second")
    assert claim.answer["error"]["kind"] == "taken_over"  # while the first is at work
    second = Watcher(job, offset=0, owner="second", force=True)
    assert b'"ended"' not in first.stdout.read()  # which ends, although the job has not
    late = Watcher(job, offset=0, owner="first", again=True)
    assert late.answer["error"]["kind"] == "taken_over"
    assert Watcher(job, offset=0, owner="second", again=True).answer["ok"]
    assert texts(list(second.lines())) == [f"line {n}" for n in range(2000)]


def test_a_job_is_ended_by_who_watches_it_alone(job: Job) -> None:
    job.prepare()
    job.start("import time; time.sleep(600)")

    def stop(owner: str, **how: object) -> str:
        return str(job.call("stop", owner=owner, reason="x", wait=9, **how)["state"])

    first = Watcher(job, offset=0, owner="first")
    assert stop("second") == stop("second", unwatched=True) == "not_owner"
    Watcher(job, offset=0, owner="second")  # is told to wait, and will not be robbed meanwhile
    assert stop("first") == "not_owner"
    first.cut()
    second = Watcher(job, offset=0, owner="second", force=True)
    assert stop("second") == "ended"
    second.cut()


def test_a_job_that_nobody_watches_is_ended_by_who_was_to_watch_it(job: Job) -> None:
    job.prepare()
    job.start("import time; time.sleep(600)")
    first = Watcher(job, offset=0, owner="first")
    first.stdin.close()
    first.call.wait()
    how = {"owner": "second", "reason": "x", "wait": 9}
    assert job.call("stop", **how)["state"] == "not_owner"
    assert job.call("stop", **how, unwatched=True)["state"] == "ended"
