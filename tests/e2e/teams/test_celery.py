"""What holds with the executor, the database and the triggerers of one machine holds for teams'."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from dev.programs import session
from dev.rest import until
from distributed_training.triggers.job import REPLACEMENT
from tests.chaos.stage import GRACE_PERIOD, freeze, thaw
from tests.e2e.counting import Counting
from tests.fleet import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dev.airflow import AirflowStack
    from dev.programs import Program
    from tests.fleet import Fleet

    Start = Callable[..., Counting]

RECEIVED = re.compile(r"Task execute_workload\[([0-9a-f-]+)\] received")
FROM_TRIGGERER = " 60"  # counted four times a second, of which a worker watches ten seconds
SLOW_SETUP = "sleep 30.5"
# Seconds: what is promised, what a triggerer waits that stood still, and a busy machine's due.
BOUND = GRACE_PERIOD + 5 + REPLACEMENT + 5


@pytest.fixture
def start(
    airflow: AirflowStack, fleet: Fleet, wait_until_idle: Callable[[], None]
) -> Iterator[Start]:
    """Start runs that count; when the test ends, no rank is left."""
    runs: list[Counting] = []

    def begin(name: str, lines: int | None = None, dag: str = "ranks") -> Counting:
        key = f"{name}-{time.monotonic_ns()}"
        runs.append(Counting.start(airflow, fleet, key, lines, dag))
        return runs[-1]

    yield begin
    for counting in runs:
        counting.end()
    wait_until_idle()


def test_a_job_succeeds_and_a_user_ends_another(start: Start) -> None:
    ended, succeeds = start("ended"), start("succeeds", 80)
    for each in (ended, succeeds):
        each.wait_for("deferred")
    ended.run.wait_for_line("train", FROM_TRIGGERER)
    ended.run.mark("train", "failed")
    ended.wait_for_no_rank(BOUND)
    assert (succeeds.run.wait(), ended.run.wait()) == ("success", "failed")
    assert {record.done for record in succeeds.records()} == {True}
    succeeds.assert_nothing_lost()
    ended.assert_nothing_lost(to_the_end=False)


def test_a_retry_keeps_what_a_killed_worker_watched_and_not_what_it_was_starting(
    start: Start, airflow: AirflowStack, fleet: Fleet
) -> None:
    starting, watched = start("starting", 60, "slow_start"), start("watched", 280, "ranks_again")
    watched.wait_for("running")
    for _ in until(60, "the setup does not run on both hosts"):
        if all(any(p.command == SLOW_SETUP for p in host.processes()) for host in fleet.hosts):
            break
    before = watched.pids()
    airflow.kill("worker")
    airflow.components["worker"].start()
    watched.run.wait_for_line("train", " 200", try_number=2)
    assert watched.pids() == before
    assert _redelivered(airflow)
    for each in (watched, starting):
        assert each.run.wait() == "success"
        assert each.run.task("train")["try_number"] == 2
        assert len(each.records()) == 4
        each.assert_nothing_lost(tries=2)


def test_a_frozen_triggerer_that_comes_back_does_no_harm(
    start: Start, airflow: AirflowStack
) -> None:
    counting = start("frozen", 280).wait_for("deferred")
    counting.run.wait_for_line("train", FROM_TRIGGERER)
    owner, number = _owner(airflow, counting)
    _freeze(owner)
    for _ in until(60, "the other triggerer does not take over"):
        if _triggerer(counting) not in (None, number):
            break
    time.sleep(5)  # so that it watches, too
    thaw(owner)
    assert counting.run.wait() == "success"
    assert len(counting.records()) == 4
    counting.assert_nothing_lost()


def _redelivered(airflow: AirflowStack) -> set[str]:
    """Return the tasks that Redis has given to a worker once more."""
    received = Counter(RECEIVED.findall(airflow.components["worker"].log.read_text()))
    return {task for task, times in received.items() if times > 1}


def _owner(airflow: AirflowStack, counting: Counting) -> tuple[Program, int]:
    """Return the triggerer that watches a run, as its process and as Airflow's number of it."""
    names = ("triggerer", "second-triggerer")
    for _ in until(30, "no triggerer watches the job"):
        for program in (airflow.components[name] for name in names):
            if (number := _triggerer(counting)) and _has_open(program, counting.run.run_id):
                return program, number
    raise AssertionError("until() raises at its end")


def _freeze(triggerer: Program) -> None:
    """Freeze first what watches, so that nothing is on its way to the log: that would come later.

    Such lines, of a few milliseconds, are doubled; nobody could keep Airflow from writing them.
    """
    assert triggerer.process is not None
    children = psutil.Process(triggerer.process.pid).children(recursive=True)
    processes.send(signal.SIGSTOP, [child.pid for child in children])
    time.sleep(1)
    freeze(triggerer)


def _triggerer(counting: Counting) -> int | None:
    job = counting.run.task("train")["triggerer_job"]
    return job and int(job["id"])


def _has_open(program: Program, run_id: str) -> bool:
    """Tell whether a program writes the log of a run."""
    assert program.process is not None
    for process in session(program.process.pid):
        with suppress(psutil.NoSuchProcess):
            if any(run_id in file.path for file in process.open_files()):
                return True
    return False
