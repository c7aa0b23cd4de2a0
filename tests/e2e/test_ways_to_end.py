"""Every way in which Airflow or a user ends a task leaves no rank, wherever it is watched then.

Many runs at once: each waits for the same things. What `test_ending.py` shows is not shown again.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

import pytest

from distributed_training.triggers.job import RUN_EVERY
from tests.e2e.counting import ORPHAN_TIMEOUT, Counting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dev.airflow import AirflowStack
    from tests.fleet import Fleet

    Start = Callable[..., Counting]

LIMIT = 45  # seconds, of the DAGs that are limited
BOUND = 3 + 5 + 5  # seconds: grace, what is promised beyond it, and a busy machine's due


@pytest.fixture
def start(airflow: AirflowStack, fleet: Fleet) -> Iterator[Start]:
    """Start runs whose ranks count for ever; when the test ends, all have ended."""
    runs: list[Counting] = []

    def begin(name: str, dag: str = "ranks", lines: int | None = None) -> Counting:
        key = f"{name}-{time.monotonic_ns()}"
        limit = ORPHAN_TIMEOUT
        runs.append(Counting.start(airflow, fleet, key, lines, dag, orphan_timeout=limit))
        return runs[-1]

    yield begin
    if airflow.components["triggerer"].process is None:
        airflow.components["triggerer"].start()
    for counting in runs:
        counting.end()
    for counting in runs:
        counting.wait_for_no_rank(ORPHAN_TIMEOUT + BOUND)


def delete(airflow: AirflowStack, counting: Counting) -> None:
    """Delete the whole DAG of a run, which Airflow refuses while a worker runs a task of it."""
    airflow.api.call("DELETE", f"/api/v2/dags/{counting.run.dag_id}")


def test_a_running_task_ends_with_its_ranks(start: Start) -> None:
    marked, failed, cleared = start("marked"), start("failed"), start("cleared")
    for counting in (marked, failed, cleared):
        counting.wait_for("running", "deferred")  # the latter on a very slow machine
    before = cleared.pids()
    cleared.run.clear("train")
    marked.run.mark("train", "success")
    failed.run.fail()
    for counting in (marked, failed):
        counting.wait_for_no_rank(BOUND)
    assert marked.run.wait() == "success"
    assert failed.run.wait() == "failed"
    cleared.run.wait_for_line("train", " 5", try_number=2)
    assert cleared.pids().isdisjoint(before)
    cleared.assert_nothing_lost(tries=2, to_the_end=False)


def test_a_deferred_task_ends_with_its_ranks(start: Start, airflow: AirflowStack) -> None:
    limited, run_limited = start("limited", "ranks_limited"), start("late", "ranks_run_limited")
    failed, deleted = start("failed"), start("deleted", "ranks_deleted_0")
    outlived = start("outlived")
    for counting in (failed, deleted, outlived):
        counting.wait_for("deferred")
    # As after a run's timeout in the moment that its task defers: nobody is told.
    with sqlite3.connect(airflow.home / "airflow.db", timeout=30) as database:
        over = "UPDATE dag_run SET state = 'failed' WHERE run_id = ?"
        database.execute(over, [outlived.run.run_id])
    failed.run.fail()
    delete(airflow, deleted)
    for counting in (failed, deleted):
        counting.wait_for_no_rank(BOUND)
    outlived.wait_for_no_rank(RUN_EVERY + BOUND)
    for counting in (limited, run_limited):  # limits that may not be over yet
        counting.wait_for_no_rank(LIMIT + BOUND)
    assert limited.run.wait() == "failed"
    assert any("execution_timeout was over" in line for line in limited.run.log("train"))
    assert run_limited.run.wait() == "failed"
    for counting in (limited, run_limited, failed):
        counting.assert_nothing_lost(to_the_end=False)


def test_without_a_triggerer_ranks_end_by_themselves(start: Start, airflow: AirflowStack) -> None:
    limited, run_limited = start("limited", "ranks_limited"), start("late", "ranks_run_limited")
    marked, failed = start("marked"), start("failed")
    deleted = start("deleted", "ranks_deleted_1")
    for counting in (limited, run_limited, marked, failed, deleted):
        counting.wait_for("deferred")
    airflow.kill("triggerer")
    marked.run.mark("train", "success")
    failed.run.fail()
    delete(airflow, deleted)
    running = start("running").wait_for("running", "deferred")
    running.run.fail()
    running.wait_for_no_rank(BOUND)  # that one needs no triggerer
    for counting in (limited, run_limited, marked, failed, deleted):
        counting.wait_for_no_rank(ORPHAN_TIMEOUT + BOUND)
    airflow.components["triggerer"].start()
    assert limited.run.wait() == "failed"
    assert marked.run.wait() == "success"
    assert failed.run.wait() == "failed"


def test_a_success_that_is_cleared_trains_anew(start: Start) -> None:
    counting = start("anew", lines=8)
    assert counting.run.wait() == "success"
    counting.run.clear("train")
    assert counting.run.wait() == "success"
    assert [record.numbers for record in counting.records()] == [8] * 8
    counting.assert_nothing_lost(tries=2)
