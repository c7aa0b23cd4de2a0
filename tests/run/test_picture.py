"""What the web page is told of a job, from what hosts send."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from distributed_training.errors import JobCancelled, NodeLost, RankFailed
from distributed_training.fleet import Host
from distributed_training.run.job import JobRef, NodeRef
from distributed_training.run.picture import LIMIT, POINTS, Curve, Picture
from distributed_training.run.verdict import NodeState

NODES = (
    NodeRef(0, Host("gpu1"), "10.0.0.1", "/r", (0, 1), slots=("gpu-a", "gpu-b")),
    NodeRef(1, Host("gpu2"), "10.0.0.2", "/r", (2, 3), slots=("cpu-0", "")),
)
JOB = JobRef("job", 0, NODES, 30, 60, 900, started=100.0)


def exited(rank: int, **fields: Any) -> dict[str, Any]:
    usual = {"k": "exit", "t": 150.0, "rank": rank, "code": 0, "signal": None, "by_us": False}
    return {**usual, **fields}


def sign(**fields: Any) -> dict[str, Any]:
    return {"k": "alive", "output": 0, **fields}


def rows(*rows: dict[str, float], offset: int = 9, clock: float = 130.0) -> dict[str, Any]:
    return {"rows": list(rows), "offset": offset, "clock": clock}


@pytest.fixture
def picture() -> Picture:
    return Picture(JOB)


@pytest.fixture
def states() -> list[NodeState]:
    return [NodeState(node) for node in NODES]


def test_ranks_are_shown_where_they_run_and_since_when(
    picture: Picture, states: list[NodeState]
) -> None:
    picture.note(NODES[1], {"k": "started", "t": 120.0, "rank": 2}, clock=5.0)
    shown = picture.record(states)
    assert (shown["state"], shown["world_size"], shown["verdict"]) == ("running", 4, None)
    third = shown["ranks"][2]
    assert third == {
        "rank": 2, "host": "gpu2", "role": "", "slot": "cpu-0", "state": "running",
        "started": 115.0, "ended": None, "code": None, "signal": None,
    }  # fmt: skip


def test_how_each_rank_ended_is_told_apart(picture: Picture, states: list[NodeState]) -> None:
    states[0].exits += [exited(0), exited(1, code=None, signal="SIGTERM", by_us=True)]
    states[1].exits += [exited(2, code=1), exited(3, code=1)]
    error = RankFailed("rank 3 failed", host="gpu2", rank=3, exit_code=1)
    shown = picture.last(states, error)
    assert [rank["state"] for rank in shown["ranks"]] == [
        "ended", "stopped", "failed", "failed_first",
    ]  # fmt: skip
    assert shown["state"] == "failed"
    assert shown["verdict"] == {
        "kind": "RankFailed", "message": "rank 3 failed", "host": "gpu2", "rank": 3,
        "exit_code": 1, "signal": None,
    }  # fmt: skip


def test_a_lost_host_is_shown_with_its_ranks(picture: Picture, states: list[NodeState]) -> None:
    states[1].lost = "nobody can reach it"
    shown = picture.last(states, NodeLost("gpu2 was lost", host="gpu2"))
    assert [host["state"] for host in shown["hosts"]] == ["silent", "lost"]
    assert [rank["state"] for rank in shown["ranks"]] == ["running", "running", "lost", "lost"]


def test_a_job_that_was_ended_is_no_failure(picture: Picture, states: list[NodeState]) -> None:
    assert picture.last(states, JobCancelled("a user ended it"))["state"] == "stopped"


def test_metrics_of_rank_0_become_curves(picture: Picture, states: list[NodeState]) -> None:
    metrics = rows({"loss": 2.0, "step": 10}, {"loss": 1.0, "step": 20, "time": 7.0})
    picture.note(NODES[0], sign(metrics=metrics), clock=5.0)
    picture.note(NODES[1], sign(metrics=rows({"loss": 99.0})), clock=0.0)
    shown = picture.record(states)
    assert shown["series"] == {"loss": [[125.0, 10, 2.0], [7.0, 20, 1.0]]}
    assert picture.metrics_read == 9


def test_metrics_without_steps_are_counted(picture: Picture, states: list[NodeState]) -> None:
    picture.note(NODES[0], sign(metrics=rows({"loss": 2.0}, {"loss": 1.0})), clock=0.0)
    assert [point[1] for point in picture.record(states)["series"]["loss"]] == [0, 1]


def test_what_hosts_use_is_shown_by_host_gpu_and_rank(
    picture: Picture, states: list[NodeState]
) -> None:
    usage = {
        "cpu": 0.5, "memory": [1, 8], "ranks": {"0": [0.9, 4]}, "gpus": {"GPU-1": [0.7, 2, 16]},
    }  # fmt: skip
    picture.note(NODES[0], sign(usage=usage), clock=0.0)
    shown = picture.record(states)["usage"]["gpu1"]
    assert [value for _, value in shown["cpu"]] == [0.5]
    assert shown["memory_total"] == 8
    assert [value for _, value in shown["gpus"]["GPU-1"]["busy"]] == [0.7]
    assert shown["gpus"]["GPU-1"]["memory_total"] == 16
    assert [value for _, value in shown["ranks"]["0"]["memory"]] == [4]


def test_the_next_watcher_goes_on_with_the_curves(
    picture: Picture, states: list[NodeState]
) -> None:
    picture.note(NODES[0], {"k": "started", "t": 120.0, "rank": 0}, clock=0.0)
    picture.note(NODES[0], sign(metrics=rows({"loss": 2.0}), usage={"memory": [1, 8]}), clock=0.0)
    before = json.loads(json.dumps(picture.record(states)))
    second = Picture(JOB)
    second.go_on(before)
    assert second.metrics_read == 9
    second.note(NODES[0], sign(metrics=rows({"loss": 1.0}, offset=18)), clock=0.0)
    shown = second.record(states)
    assert [point[2] for point in shown["series"]["loss"]] == [2.0, 1.0]
    assert shown["ranks"][0]["started"] == 120.0
    assert shown["usage"]["gpu1"]["memory_total"] == 8


def test_another_attempt_begins_with_empty_curves(
    picture: Picture, states: list[NodeState]
) -> None:
    picture.note(NODES[0], sign(metrics=rows({"loss": 2.0})), clock=0.0)
    before = picture.record(states)
    second = Picture(JOB)
    second.go_on({**before, "attempt": 1})
    assert second.metrics_read == 0
    assert second.record(states)["series"] == {}


def test_a_long_curve_is_thinned_out_evenly_and_ends_with_the_newest_point() -> None:
    curve = Curve()
    for n in range(10_001):
        curve.add([n, n])
    times = [point[0] for point in curve.points]
    assert times[-1] == 10_000
    assert POINTS // 2 <= len(times) <= POINTS
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= 2 * min(gaps[:-1])


@pytest.mark.parametrize("ranks", [64, 512, 4096])
def test_a_picture_is_never_too_large_for_airflow(ranks: int) -> None:
    nodes = [
        NodeRef(n, Host(f"host-{n}"), "10.0.0.1", "/r", tuple(range(n * 8, n * 8 + 8)))
        for n in range(ranks // 8)
    ]
    picture = Picture(JobRef("job", 0, tuple(nodes), 30, 60, 900, started=100.0))
    used = {"cpu": 0.5, "memory": [1, 8], "ranks": {str(n): [0.9, 4] for n in range(8)}}
    for _ in range(300):
        metrics = rows({f"metric {m}": 1.0 for m in range(20)})
        for node in nodes[:16]:
            picture.note(node, sign(usage=used, metrics=metrics), clock=0.0)
    shown = picture.record([NodeState(node) for node in nodes])
    assert len(json.dumps(shown)) <= LIMIT
    assert shown["ranks"]
