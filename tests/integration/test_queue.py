"""Tasks that wait for slots on real hosts."""

from __future__ import annotations

import asyncio
import datetime
import json
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from structlog.testing import capture_logs

from distributed_training.errors import JobCancelled, JobTimeout, PreflightFailed, SlotsBusy
from distributed_training.plan import JobSpec, Program
from distributed_training.run import queue
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch
from distributed_training.run.stop import stop
from distributed_training.triggers import base
from distributed_training.triggers.queue import QueueTrigger
from tests.fleet.wait import until
from tests.integration.tasks import Task, event_of, one_after_the_other, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fleet import Fleet
    from tests.integration.jobs import Jobs

    Hold = Callable[..., "Held"]

TICKETS = "/tmp/.distributed_training/tickets"


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask often, and without Airflow's supervisor that could miss an early event."""
    monkeypatch.setattr(queue, "PAUSE", (0.2, 0.5))
    monkeypatch.setattr(queue, "PATIENCE", 10.0)
    monkeypatch.setattr(base, "HOLD", 0.0)


class Held:
    """Slots that a job holds until it is told to let go."""

    def __init__(self, jobs: Jobs, hosts: list[str]) -> None:
        self.jobs = jobs
        self.job_id = f"holder-{secrets.token_hex(4)}"
        self.ref: JobRef = jobs.ask(self._start, hosts)

    async def _start(self, agents: dict[str, Any], hosts: list[str]) -> JobRef:
        spec = JobSpec(self.job_id, Program("command", "sleep 600"), grace_period=3.0)
        return JobRef.of(await launch(spec, [agents[name] for name in hosts], owner="test"))

    def let_go(self) -> None:
        """Free the slots."""

        async def end(agents: dict[str, Any]) -> None:
            await stop(self.ref, agents, reason="enough", wait=3.0)

        self.jobs.ask(end)


@pytest.fixture
def hold(jobs: Jobs) -> Iterator[Hold]:
    """Hold all slots of hosts, as long as the test needs them held."""
    holders: list[Held] = []

    def start(*hosts: str) -> Held:
        holders.append(Held(jobs, list(hosts)))
        return holders[-1]

    yield start
    for held in holders:
        held.let_go()


@pytest.fixture
def tickets(fleet: Fleet) -> Callable[[], list[str]]:
    """List the tickets that lie on any host."""

    def listed() -> list[str]:
        found = [host.exec(["ls", TICKETS], check=False).stdout for host in fleet.hosts]
        return " ".join(found).split()

    return listed


@pytest.fixture(autouse=True)
def no_ticket_is_left(jobs: Jobs, tickets: Callable[[], list[str]]) -> Iterator[None]:
    """Whatever becomes of a task, it does not go on waiting."""
    yield
    assert tickets() == []


def wait_until_queued(*tasks: Task) -> None:
    until(
        lambda: all("launch_queued" in task.deferrals for task in tasks), "not queued", timeout=60
    )


def test_tasks_that_want_the_same_slots_run_one_after_the_other(hold: Hold) -> None:
    held = hold("gpu1", "gpu2")
    with capture_logs() as logged:
        first = Task(queue_timeout="600").start()
        wait_until_queued(first)
        second = Task(queue_timeout=600).start()
        wait_until_queued(second)
        held.let_go()
        first.wait()
        second.wait()
    assert one_after_the_other(first, second)
    assert first.deferrals == ["launch_queued"]
    news = " ".join(entry["event"] for entry in logged)
    assert f"Waiting for slots: gpu1 cpu-0, cpu-1 held by job {held.job_id} of user train" in news
    assert f"wanted first by waiting job {first.job_id}" in news


def test_tasks_whose_hosts_overlap_all_get_their_turn(
    jobs_on: Callable[..., Jobs], make_fleet: Callable[[int], Fleet]
) -> None:
    """Each takes one host from each of the others; if they kept what they got, all would wait."""
    jobs_on(make_fleet(3))
    circle = ("gpu1@gpu2", "gpu2@gpu3", "gpu3@gpu1")
    tasks = [Task(hosts=hosts, queue_timeout=600).start() for hosts in circle]
    assert [task.wait()["state"] for task in tasks] == ["success"] * 3


def test_small_tasks_that_came_later_do_not_starve_a_large_one(hold: Hold) -> None:
    held = hold("gpu1")
    large = Task(queue_timeout=600).start()
    wait_until_queued(large)
    small = Task(queue_timeout=600, hosts="gpu2", nproc_per_node=2).start()
    wait_until_queued(small)
    with pytest.raises(SlotsBusy, match=f"gpu2: .*awaited by job {large.job_id}"):
        Task(hosts="gpu2").run()
    held.let_go()
    large.wait()
    small.wait()
    assert one_after_the_other(large, small)


def test_a_task_that_waits_takes_whichever_host_is_free_first(hold: Hold) -> None:
    hold("gpu1")
    held = hold("gpu2")
    task = Task(nnodes=1, queue_timeout=600).start()
    wait_until_queued(task)
    held.let_go()
    assert task.wait()["hosts"] == ["gpu2"]


def test_a_task_that_nobody_tends_any_more_blocks_no_other(hold: Hold, fleet: Fleet) -> None:
    held = hold("gpu1")
    forgotten = Task(queue_timeout=600)
    forgotten.deferred()
    held.let_go()
    with pytest.raises(SlotsBusy, match=f"awaited by job {forgotten.job_id}"):
        Task().run()
    age = f"touch -d '-61 seconds' {TICKETS}/*"
    for host in fleet.hosts:
        host.exec(["sh", "-c", age])
    assert Task(queue_timeout=600).run()["state"] == "success"
    for host in fleet.hosts:
        host.exec(["sh", "-c", f"rm {TICKETS}/*"])


def test_two_airflow_installations_wait_in_one_queue(
    hold: Hold, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = fleet.connection_json(slots=2, work_dir="/tmp/theirs")
    monkeypatch.setenv("AIRFLOW_CONN_THEIRS", connection)
    held = hold("gpu1", "gpu2")
    theirs = Task(fleet_conn_id="theirs", queue_timeout=600).start()
    wait_until_queued(theirs)
    ours = Task(queue_timeout=600).start()
    wait_until_queued(ours)
    held.let_go()
    theirs.wait()
    ours.wait()
    assert one_after_the_other(theirs, ours)


def test_without_a_time_to_wait_a_task_fails_at_once(hold: Hold) -> None:
    held = hold("gpu1")
    with pytest.raises(SlotsBusy, match=f"gpu1: slots in use: cpu-0 held by job {held.job_id}"):
        Task().run()


def test_a_task_that_waited_in_vain_tells_for_whom(hold: Hold) -> None:
    held = hold("gpu1")
    task = Task(queue_timeout=10)
    what = rf"waited \d+ s \(queue_timeout\) .*gpu1 cpu-0, cpu-1 held by job {held.job_id}"
    with pytest.raises(SlotsBusy, match=what):
        task.run()
    assert task.deferrals == ["launch_queued"]


def test_a_task_does_not_wait_beyond_its_execution_timeout(hold: Hold) -> None:
    held = hold("gpu1")
    task = Task(queue_timeout=600, execution_timeout=datetime.timedelta(seconds=3))
    task.context["ti"].start_date = datetime.datetime.now(datetime.UTC)
    with pytest.raises(JobTimeout, match=f"execution_timeout is over: waited .*{held.job_id}"):
        task.run()


def test_a_task_that_may_not_defer_waits_in_the_worker(hold: Hold) -> None:
    held = hold("gpu1")
    timer = threading.Timer(3, held.let_go)
    timer.start()
    task = Task(queue_timeout=600, deferrable=False)
    assert task.run()["state"] == "success"
    assert task.deferrals == []
    timer.join()


def test_a_task_that_is_ended_while_it_waits_in_the_worker_leaves_the_queue(
    hold: Hold, tickets: Callable[[], list[str]]
) -> None:
    hold("gpu1")
    task = Task(queue_timeout=600, deferrable=False).start()
    until(lambda: bool(tickets()), "no ticket was left")
    time.sleep(1)
    task.operator.on_kill()
    with pytest.raises(JobCancelled):
        task.wait()


def test_a_task_that_is_ended_while_it_waits_in_the_triggerer_leaves_the_queue(
    hold: Hold, tickets: Callable[[], list[str]]
) -> None:
    hold("gpu1")
    trigger = stored(Task(queue_timeout=600).deferred().trigger)
    assert tickets()

    async def story() -> None:
        waiting = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await trigger.on_kill()

    asyncio.run(story())


def test_a_task_that_fails_for_another_reason_leaves_the_queue(jobs: Jobs) -> None:
    with pytest.raises(PreflightFailed):
        Task(queue_timeout=600, setup="exit 4").run()


def test_a_task_goes_on_waiting_while_a_host_is_out_of_reach(
    jobs_on: Callable[..., Jobs], make_fleet: Callable[[int], Fleet]
) -> None:
    hosts = make_fleet(2)
    held = Held(jobs_on(hosts, conn_timeout=2), ["gpu1"])
    with capture_logs() as logged:
        task = Task(queue_timeout=600).start()
        wait_until_queued(task)
        hosts["gpu2"].cut_cable()
        lost = "Waiting for slots: cannot reach gpu2"
        until(lambda: any(lost in entry["event"] for entry in logged), "not noticed", timeout=60)
        hosts["gpu2"].plug_cable()
        held.let_go()
        assert task.wait()["state"] == "success"


def test_a_trigger_that_fails_while_it_waits_is_replaced(hold: Hold) -> None:
    held = hold("gpu1")
    task = Task(queue_timeout=600)
    task.deferred()
    failure = {"error": "Trigger failure", "traceback": ["ValueError"]}
    with pytest.raises(TaskDeferred) as deferred:
        task.operator.resume_execution("__fail__", failure, task.context)
    assert isinstance(deferred.value.trigger, QueueTrigger)
    held.let_go()
    event = asyncio.run(event_of(stored(deferred.value.trigger)))
    assert task.operator.launch_queued(task.context, event)["state"] == "success"


def test_what_airflow_stores_of_a_waiting_task_has_no_secret(hold: Hold) -> None:
    hold("gpu1")
    task = Task("true # hunter2", queue_timeout=600, env={"TOKEN": "hunter2"}, setup=": hunter2")
    trigger = stored(task.deferred().trigger)
    assert "hunter2" not in json.dumps([trigger.serialize(), task.context["task_state_store"]])
    asyncio.run(trigger.on_kill())
