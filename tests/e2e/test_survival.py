"""Ranks go on, whatever happens to Airflow or to the network: no line is lost, none comes twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from dev.rest import until
from tests.chaos.faults import task_processes
from tests.chaos.stage import HEALTH, freeze, second_triggerer, thaw
from tests.e2e.counting import Counting
from tests.e2e.probe import times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dev.airflow import AirflowStack
    from tests.fleet import Fleet

    Start = Callable[..., Counting]


@pytest.fixture
def start(
    airflow: AirflowStack, fleet: Fleet, wait_until_idle: Callable[[], None]
) -> Iterator[Start]:
    """Start runs that count; Airflow is whole again after the test, and no rank is left."""
    runs: list[Counting] = []

    def begin(name: str, lines: int | None = None, **given: object) -> Counting:
        key = f"{name}-{time.monotonic_ns()}"
        runs.append(Counting.start(airflow, fleet, key, lines, **given))  # type: ignore[arg-type]
        return runs[-1]

    yield begin
    for counting in runs:
        if counting.pids():
            counting.run.fail()
    wait_until_idle()


def test_a_killed_triggerer_scheduler_and_api_server_cost_nothing(
    start: Start, airflow: AirflowStack
) -> None:
    ends, fails = start("ends", 220), start("fails", 260, ranks={"2": {"fails_at": 200}})
    for each in (ends, fails):
        each.wait_for("deferred")
    for part in ("triggerer", "scheduler", "api-server", "triggerer"):
        airflow.kill(part)
        airflow.components[part].start()
        airflow.wait_until_healthy()
    assert (ends.run.wait(), fails.run.wait()) == ("success", "failed")
    assert any("rank 2 on gpu2 exited with status 7" in line for line in fails.run.log("train"))
    for each in (ends, fails):
        each.assert_nothing_lost()


def test_a_restart_of_all_of_airflow_costs_nothing(start: Start, airflow: AirflowStack) -> None:
    # A retry, since Airflow may lose the process of a task while it starts.
    counting = start("restart", 160, dag="ranks_again").wait_for("deferred")
    airflow.stop()
    airflow.start()
    assert counting.run.wait() == "success"
    counting.assert_nothing_lost(tries=int(counting.run.task("train")["try_number"]))


@pytest.mark.parametrize("what", ["task", "supervisor"])
def test_a_retry_goes_on_with_the_ranks_of_a_killed_worker(
    start: Start, airflow: AirflowStack, what: str
) -> None:
    counting = start("worker", 240, dag="ranks_again").wait_for("running")
    task = counting.run.task("train")["id"]
    process, worker = task_processes(airflow.components["scheduler"], task)
    process.kill()
    if what == "supervisor":
        worker.kill()
    assert counting.run.wait() == "success"
    assert len(counting.records()) == 4
    counting.assert_nothing_lost(tries=2)


def test_broken_frozen_and_slow_connections_cost_nothing(start: Start, fleet: Fleet) -> None:
    counting = start("network", 140).wait_for("deferred")
    one, two = fleet.hosts
    one.drop_connections()
    two.freeze()
    limit = ["tbf", "rate", "64kbit", "burst", "4kb", "latency", "2s"]
    one.exec(["tc", "qdisc", "add", "dev", "eth0", "root", *limit], user="root")
    time.sleep(6)  # that is how long the two last
    two.thaw()
    one.exec(["tc", "qdisc", "del", "dev", "eth0", "root"], user="root")
    two.stop_sshd()
    two.drop_connections()
    two.restart_sshd()
    assert counting.run.wait() == "success"
    counting.assert_nothing_lost()


def test_a_frozen_triggerer_that_comes_back_does_no_harm(
    start: Start, airflow: AirflowStack, tmp_path: Path
) -> None:
    probe = airflow.api.trigger("probed", {"folder": str(tmp_path)})
    counting = start("frozen", 300).wait_for("deferred")
    first, second = airflow.components["triggerer"], second_triggerer(airflow)
    second.start()
    try:
        _wait_for_triggerers(airflow, 2)
        freeze(first)
        time.sleep(2 * HEALTH)  # Airflow gives its work to the other one
        thaw(first)
        assert counting.run.wait() == "success"
        # This is what it survives: Airflow kills in one triggerer what waits in the other.
        assert times(tmp_path, "kill began")
        assert probe.tasks()["wait"] == "deferred"
        probe.fail()
    finally:
        second.end(grace=10)
    counting.assert_nothing_lost()


def _wait_for_triggerers(airflow: AirflowStack, number: int) -> None:
    for _ in until(60, f"there are not {number} triggerers"):
        jobs = airflow.api.call("GET", "/api/v2/jobs", job_type="TriggererJob", is_alive=True)
        if jobs["total_entries"] >= number:
            return
