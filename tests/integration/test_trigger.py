"""The trigger, on real hosts and outside a triggerer."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.serde import deserialize, serialize
from structlog.testing import capture_logs

from distributed_training.errors import JobTimeout
from distributed_training.plan import JobSpec, Program
from distributed_training.run.agents import Stream
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch
from distributed_training.run.watch import Outcome
from distributed_training.triggers import base, job, tasklog
from distributed_training.triggers.job import JobTrigger
from distributed_training.triggers.tasklog import TaskLog
from tests.fleet.processes import with_environment


async def started(jobs, command, **fields):
    """Start a job of one command on every slot, and return the reference to it."""
    name = f"trigger-{secrets.token_hex(4)}"
    spec = JobSpec(name, Program("command", command), grace_period=5.0, **fields)
    async with jobs.agents() as agents:
        plan = await launch(spec, list(agents.values()), owner="worker")
    return JobRef.of(plan, time.time())


def watcher(ref, deadline=None):
    """Return a trigger as the triggerer makes it: from what was stored."""
    path, fields = JobTrigger("gpu_fleet_default", ref.to_dict(), deadline).serialize()
    assert path == "distributed_training.triggers.job.JobTrigger"
    stored: Any = deserialize(json.loads(json.dumps(serialize(fields))))
    return JobTrigger(**stored)


async def event_of(trigger):
    """Return the trigger's only event."""
    (event,) = [event async for event in trigger.run()]
    return Outcome.from_dict(json.loads(json.dumps(event.payload)))


@pytest.fixture(autouse=True)
def no_hold(monkeypatch):
    """There is no supervisor of Airflow here that could miss an early event."""
    monkeypatch.setattr(base, "HOLD", 0.0)
    monkeypatch.setattr(job, "REPLACEMENT", 1.0)


def test_a_trigger_watches_a_job_to_its_end(jobs):
    async def story():
        return await event_of(watcher(await started(jobs, "echo from $RANK; sleep 1")))

    outcome = asyncio.run(story())
    assert outcome.error is None
    assert [len(node.ranks) for node in outcome.ref.nodes] == [2, 2]


def test_an_event_is_held_until_airflow_can_take_it(jobs, monkeypatch):
    monkeypatch.setattr(base, "HOLD", 3.0)

    async def story():
        ref = await started(jobs, "true")
        began = time.monotonic()
        await event_of(watcher(ref))
        return time.monotonic() - began

    assert asyncio.run(story()) >= 3.0


def test_a_deadline_ends_the_job_everywhere(jobs):
    async def story():
        ref = await started(jobs, "sleep 600")
        return ref, await event_of(watcher(ref, time.time() + 1))

    ref, outcome = asyncio.run(story())
    assert isinstance(outcome.error, JobTimeout)
    assert not with_environment(f"DT_JOB_ID={ref.job_id}")


async def killed(jobs, *, watched):
    """Let a trigger run for a while or not at all, and end it as a user's click does."""
    ref = await started(jobs, "trap '' TERM; sleep 600; sleep 600")
    trigger = watcher(ref)
    if watched:
        running = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    kill = asyncio.ensure_future(trigger.on_kill())
    await asyncio.sleep(0.05)
    kill.cancel()  # as Airflow does after a second
    await asyncio.gather(*base.kills)
    return ref


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "just created"])
def test_a_kill_is_carried_out_although_airflow_cuts_it(jobs, watched):
    async def story():
        ref = await killed(jobs, watched=watched)
        again = await event_of(watcher(ref))
        return ref, again

    ref, outcome = asyncio.run(story())
    assert "a user ended the task" in str(outcome.error)
    assert not with_environment(f"DT_JOB_ID={ref.job_id}")


def test_a_trigger_does_not_end_a_job_that_another_one_has_taken_over(jobs):
    """A triggerer that froze and resumes finds its job watched by another."""

    async def story():
        ref = await started(jobs, "sleep 8")
        frozen, other = watcher(ref), watcher(ref)
        first = asyncio.ensure_future(event_of(frozen))
        await asyncio.sleep(1.5)
        second = asyncio.ensure_future(event_of(other))
        await asyncio.sleep(1.5)
        first.cancel()
        await frozen.on_kill()
        return await second

    assert asyncio.run(story()).error is None


@pytest.mark.parametrize("late", [0, 2])
def test_a_trigger_goes_on_where_the_log_of_the_last_one_ends(jobs, tmp_path, monkeypatch, late):
    """A restarted triggerer starts from the first arguments; no line may come twice.

    Also if the triggerer has so much to do that it reads answers some seconds late.
    """
    log = tmp_path / "attempt=1.log"
    begin = Stream.begin

    async def begin_late(stream, marker):
        await begin(stream, marker)
        await asyncio.sleep(late)

    async def story(logged):
        ref = await started(jobs, "for n in $(seq 80); do echo line $n; sleep 0.1; done")
        first = asyncio.ensure_future(event_of(watcher(ref)))
        await asyncio.sleep(5)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        now = datetime.now(UTC).isoformat()
        shown = [json.dumps({"timestamp": now, "event": entry["event"]}) for entry in logged]
        log.write_text("\n".join(shown))
        second = watcher(ref)
        second._task_log = TaskLog(log, "attempt=1.log.trigger.*")
        monkeypatch.setattr(Stream, "begin", begin_late)
        return await event_of(second)

    with capture_logs() as logged:
        assert asyncio.run(story(logged)).error is None
    lines = [entry["event"] for entry in logged if entry["event"].startswith("[rank 2 ")]
    assert [line.partition("] ")[2] for line in lines] == [f"line {n}" for n in range(1, 81)]


def test_a_job_does_not_outlive_its_dag_run(jobs, monkeypatch):
    """A run that times out in the moment that its task defers leaves the task deferred."""

    async def failed(dag_id, run_id):
        return "failed"

    async def story():
        trigger = watcher(await started(jobs, "sleep 600"))
        task: Any = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
        trigger.task_instance = task
        return await event_of(trigger)

    monkeypatch.setattr(job, "RUN_EVERY", 0.5)
    monkeypatch.setattr(job, "run_state", failed)
    monkeypatch.setattr(tasklog, "LATE", 0.0)  # no triggerer writes a log here
    assert "its DAG run is over" in str(asyncio.run(story()).error)
