"""The cause of a job's end."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from distributed_training.errors import (
    JobCancelled,
    JobTimeout,
    NodeLost,
    OutOfMemory,
    RankFailed,
    TrainingError,
)
from distributed_training.fleet import Host
from distributed_training.run.job import JobRef, NodeRef
from distributed_training.run.verdict import TIMED_OUT, NodeState, is_port_taken, verdict

NODES = (
    NodeRef(0, Host("gpu1"), "10.0.0.1", "/r", (0, 1)),
    NodeRef(1, Host("gpu2"), "10.0.0.2", "/r", (2, 3)),
)
REF = JobRef("job", 0, NODES, 30.0, 60.0, 900.0, 0.0)


def exited(rank, code=None, signal=None, t=1.0, by_us=False, tail=(), **more):
    """Return the record of a rank's end."""
    known = {"k": "exit", "rank": rank, "code": code, "signal": signal, "t": t, "by_us": by_us}
    return known | {"elapsed": 41.2, "tail": list(tail), "oom": False} | more


def judged(*exits, states=("failed", "failed"), stopped=None, reasons=("", ""), faults=((), ())):
    """Return the verdict on two nodes that journalled ``exits``, by rank."""
    nodes = [NodeState(node) for node in NODES]
    for record in exits:
        nodes[0 if record["rank"] in (None, 0, 1) else 1].exits.append(record)
    for node, state, reason, found in zip(nodes, states, reasons, faults, strict=True):
        end = {"state": state, "reason": reason, "gpu_faults": found}
        node.ended = end if state else None
    return verdict(REF, nodes, stopped)


def cause(*exits, **fields):
    """Return why the job failed, which it has."""
    error = judged(*exits, **fields)
    assert error is not None
    return error


def test_all_nodes_that_succeeded_are_a_success():
    assert judged(exited(0, 0), exited(3, 0), states=("success", "success")) is None


def test_a_launcher_is_heard_where_only_its_daemon_failed_by_itself():
    daemon = exited(None, 1, name="daemon-1")
    launcher = exited(None, None, "SIGTERM", t=2.0, by_us=True, name="launcher", tail=["too few"])
    message = cause(daemon, launcher).message
    assert message.startswith("a daemon of the launcher on gpu1 exited with status 1")
    assert "the launcher on gpu1 said:\n  too few" in message


def test_the_first_failure_wins_over_ranks_that_it_pulled_down():
    """Cases B31, B32."""
    error = cause(exited(0, 1, t=9.0), exited(3, 7, t=5.0, tail=["boom"]), exited(2, 0))
    assert isinstance(error, RankFailed)
    assert (error.host, error.rank, error.exit_code) == ("gpu2", 3, 7)
    assert error.message.startswith("rank 3 on gpu2 exited with status 7 after 41.2 s")
    assert "boom" in error.message
    assert "failed with it: rank 0 on gpu1 exited with status 1" in error.message


def test_a_rank_is_the_cause_rather_than_the_launcher_that_ended_with_it():
    error = cause(exited(None, 1, t=1.0), exited(2, 3, t=2.0))
    assert error.rank == 2


def test_a_rank_that_we_ended_is_no_cause():
    error = cause(exited(0, signal="SIGTERM", t=1.0, by_us=True), exited(3, 7, t=5.0))
    assert error.rank == 3


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_signal_is_named(signal):
    error = cause(exited(1, signal=signal))
    assert error.signal == signal
    assert f"rank 1 on gpu1 was ended by {signal}" in error.message


def test_an_oom_kill_has_a_class_of_its_own():
    assert isinstance(cause(exited(1, signal="SIGKILL", oom=True)), OutOfMemory)


def test_a_host_that_is_lost_or_was_never_heard_of_again_is_named():
    assert cause(states=("success", None)).host == "gpu2"
    error = cause(states=("lost", "stopped"), reasons=("agent lost", ""))
    assert isinstance(error, NodeLost)
    assert "gpu1" in error.message


def test_a_launcher_that_ended_well_without_all_ranks_is_a_failure():
    error = cause(exited(None, 0), states=("failed", "success"), reasons=("rank 1 never ran", ""))
    assert isinstance(error, RankFailed)
    assert "rank 1 never ran" in error.message


def test_what_ended_the_job_from_outside_is_the_cause():
    assert isinstance(cause(states=("stopped", "stopped"), stopped=TIMED_OUT), JobTimeout)
    error = cause(states=("stopped", "stopped"), reasons=("stopped: a user", "stopped: a user"))
    assert isinstance(error, JobCancelled)


def test_a_port_that_was_taken_meanwhile_is_recognised():
    """Case B41."""
    tail = ["RuntimeError: ... EADDRINUSE: address already in use"]
    assert is_port_taken(cause(exited(0, 1, tail=tail)))
    assert not is_port_taken(cause(exited(0, 1, tail=["ValueError: lr"])))


def test_a_port_is_known_to_be_taken_although_torchrun_says_last_that_it_met_nobody():
    last = "...RendezvousConnectionError: The connection to the C10d store has failed."
    tail = ["...DistNetworkError: The server socket has failed to bind (EADDRINUSE)", last]
    assert is_port_taken(cause(exited(None, 1, name="launcher", tail=tail, traceback=[last])))


def test_errors_survive_the_way_to_the_worker_with_class_and_fields():
    error = cause(exited(3, 7, tail=["boom"]))
    again = TrainingError.from_dict(error.to_dict())
    assert type(again) is RankFailed
    assert again.to_dict() == error.to_dict()


def test_a_reference_survives_json_with_its_hosts_and_offsets():
    moved = REF.at({0: 7, 1: 11})
    assert JobRef.from_dict(moved.to_dict()) == moved


def test_a_reference_of_another_version_is_read_as_far_as_it_is_known():
    record: dict[str, Any] = {**REF.to_dict(), "unheard_of": 1}
    del record["history"]
    for node in record["nodes"]:
        del node["address"]
        node["host"]["colour"] = "blue"
    again = JobRef.from_dict(record)
    assert again.job_id == REF.job_id
    assert [node.ranks for node in again.nodes] == [(0, 1), (2, 3)]


def test_a_launcher_that_was_killed_is_the_cause_of_what_befell_its_ranks():
    killed = exited(None, signal="SIGKILL", t=1.2, name="launcher")
    error = cause(exited(2, signal="SIGTERM", t=1.0), killed)
    assert error.rank is None
    assert "the launcher on gpu1 was ended by SIGKILL" in error.message


# An elastic job that had two nodes, of which one is enough.
ELASTIC = dataclasses.replace(REF, min_nodes=1)


def member(rank, nodes, code: Any = 0, **fields):
    """Return the record of the end of a rank of an elastic job."""
    return exited(rank, code, group={"world_size": 2 * nodes, "nodes": nodes}, **fields)


def elastic(*ends, exits=(), lost=None) -> Any:
    """Return the verdict on two nodes of an elastic job by their last lines."""
    states = [NodeState(node, ended=end) for node, end in zip(NODES, ends, strict=True)]
    for record in exits:
        states[0 if record["rank"] in (None, 0, 1) else 1].exits.append(record)
    if lost is not None:
        states[lost].lost = "silence"
    return verdict(ELASTIC, states, None)


def ended(state, ranks=(), size=0, reason=""):
    """Return the last line of a node of an elastic job."""
    return {"state": state, "reason": reason, "ranks": list(ranks), "world_size": size}


def test_an_elastic_job_succeeds_on_the_hosts_that_are_left():
    failed = member(0, 2, 1, again=True)
    done = [failed, member(0, 1, t=9.0), member(1, 1, t=9.0)]
    assert elastic(ended("success", (0, 1), 2), None, exits=done, lost=1) is None
    assert elastic(ended("success", (0, 1), 2), ended("lost"), exits=done) is None


def test_an_elastic_job_without_all_of_its_last_ranks_is_no_success():
    done = [member(0, 2), member(1, 2)]
    assert elastic(ended("success", (0, 1), 4), None, exits=done, lost=1).host == "gpu2"


def test_an_elastic_job_fails_with_its_head_or_with_too_few_hosts():
    assert elastic(None, ended("stopped"), lost=0).host == "gpu1"
    states = [NodeState(NODES[0], ended=ended("stopped")), NodeState(NODES[1], lost="silence")]
    few = dataclasses.replace(REF, min_nodes=2)
    error = verdict(few, states, None)
    assert error
    assert error.host == "gpu2"


def test_an_elastic_job_that_had_gone_on_fails_for_its_own_reasons():
    failed = member(1, 1, 7, t=9.0)
    error = elastic(ended("failed", (0, 1), 2), None, exits=[failed], lost=1)
    assert (error.rank, error.exit_code) == (1, 7)


def test_an_elastic_job_that_could_not_go_on_fails_for_its_lost_host():
    """The launcher had no restart left."""
    waited = member(0, 2, None, signal="SIGKILL", by_us=True)
    launcher = exited(None, 1, name="launcher", traceback=["ChildFailedError"])
    exits = [waited, launcher]
    assert isinstance(elastic(ended("failed", (0, 1), 4), None, exits=exits, lost=1), NodeLost)


def test_a_host_that_could_not_reach_the_head_was_lost():
    tail = ["...RendezvousConnectionError: The connection to the C10d store has failed."]
    nodes = [
        NodeState(NODES[0], ended=ended("success", (0, 1), 2)),
        NodeState(NODES[1], [exited(None, 1, tail=tail, name="launcher")], ended("failed")),
    ]
    assert verdict(ELASTIC, nodes, None) is None


def test_a_host_that_was_lost_is_the_cause_of_an_end_without_a_word():
    """Open MPI ends ranks with status 14 when they lose others."""
    ends = [exited(3, 14), exited(None, 7, name="daemon-1")]
    for end in ends:
        assert isinstance(cause(end, states=("lost", "failed")), NodeLost)
    assert cause(exited(3, 14)).exit_code == 14
