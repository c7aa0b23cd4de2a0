"""The rank that failed is told from those that it pulled down, and how it ended in words."""

from __future__ import annotations

import pytest

from distributed_training.errors import GpuFault, NodeLost, OutOfMemory, PortTaken, RankFailed
from tests.run.test_verdict import cause, exited

TRACEBACK = "Traceback (most recent call last):"
FRAME = '  File "train.py", line 3, in <module>'
GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:29"
PULLED_DOWN = {
    "gloo": GLOO,
    "nccl": "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a "
    "network error, NCCL version 2.21.5",
    "store": "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was "
    "likely closed.",
    "barrier": "RuntimeError: Rank 3 failed to pass monitoredBarrier in 30000 ms",
    "reset": "ConnectionResetError: [Errno 104] Connection reset by peer",
    "tensorflow": "python.framework.errors_impl.UnavailableError: Graph execution error:",
    "mpi": "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
}


def raised(rank, words, t=1.0, after=(), **more):
    """Return the end of a rank by an exception, with what was printed after it."""
    trace = [TRACEBACK, FRAME, words]
    return exited(rank, 1, t=t, traceback=trace, tail=[*trace, *after], **more)


@pytest.mark.parametrize("words", PULLED_DOWN.values(), ids=PULLED_DOWN)
def test_a_rank_that_lost_a_peer_is_no_cause_although_it_was_noticed_first(words):
    error = cause(raised(0, words, t=1.0), raised(3, "ValueError: lr", t=2.5))
    assert (error.host, error.rank) == ("gpu2", 3)
    assert "failed with it: rank 0 on gpu1" in error.message


def test_a_killed_rank_is_the_cause_of_what_its_peers_say():
    error = cause(raised(0, GLOO, t=1.0), exited(3, signal="SIGKILL", t=1.2, tail=["epoch 3"]))
    assert (error.rank, error.signal) == (3, "SIGKILL")


def test_what_happened_long_after_is_not_the_cause():
    assert cause(raised(0, GLOO, t=1.0), raised(3, "ValueError: lr", t=60.0)).rank == 0


def test_ranks_that_all_lost_a_peer_are_judged_by_time():
    assert cause(raised(0, GLOO, t=2.0), raised(3, GLOO, t=1.0)).rank == 3


def test_noise_after_an_exception_does_not_make_a_follower_of_its_rank():
    error = cause(raised(0, GLOO, t=1.5), raised(3, "ValueError: lr", t=1.0, after=[GLOO] * 20))
    assert error.rank == 3


def test_a_rank_that_we_ended_while_it_was_failing_is_the_cause():
    slow = raised(3, "ValueError: lr", t=1.4, by_us=True)
    error = cause(raised(0, GLOO, t=1.0), slow)
    assert error.rank == 3
    assert "it was asked to end when it had failed already" in error.message


def test_an_exception_that_a_rank_survived_is_no_cause():
    trace = [TRACEBACK, FRAME, "ValueError: retried"]
    ended = exited(3, signal="SIGTERM", by_us=True, traceback=trace, tail=[*trace, "epoch 9"])
    assert cause(raised(0, GLOO, t=1.0), ended).rank == 0


def test_ranks_that_a_launcher_ended_are_followers():
    error = cause(exited(0, signal="SIGTERM", t=1.0), exited(1, 3, t=1.1))
    assert error.rank == 1


def test_a_lost_host_is_the_cause_of_what_its_peers_say():
    error = cause(raised(0, GLOO), states=("failed", None))
    assert isinstance(error, NodeLost)
    assert error.host == "gpu2"
    assert isinstance(cause(raised(0, "ValueError: lr"), states=("failed", None)), RankFailed)


def test_the_traceback_comes_first_and_then_what_was_printed_after_it():
    lines = cause(raised(3, "ValueError: lr", after=["bye"])).message.splitlines()
    assert lines[1:7] == [
        "its traceback:", f"  {TRACEBACK}", f"  {FRAME}", "  ValueError: lr",
        "its log goes on:", "  bye",
    ]  # fmt: skip
    assert sum(TRACEBACK in line for line in lines) == 1


def test_what_nccl_warned_of_is_told():
    said = "gpu2:1:1 [0] socket.cc:484 NCCL WARN Connect to 10.0.0.1<99> failed"
    assert f"NCCL warned:\n  {said}" in cause(exited(3, 1, nccl=[said])).message


def test_memory_that_ran_out_is_told_with_its_limit_and_what_to_do():
    error = cause(exited(3, signal="SIGKILL", oom=True, evidence=["the memory limit is 128 MiB"]))
    assert isinstance(error, OutOfMemory)
    assert "the memory limit is 128 MiB" in error.message
    assert "smaller batch" in error.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"signal": "SIGSEGV"}, "was ended by SIGSEGV (status 139)"),
        ({"signal": "SIGABRT"}, "was ended by SIGABRT (status 134)"),
        ({"signal": "signal 40"}, "was ended by signal 40 after"),
        ({"code": 139}, "exited with status 139 (as a shell says SIGSEGV)"),
        ({"code": 255}, "exited with status 255 after"),
    ],
)
def test_a_signal_is_named_as_people_know_it(fields, words):
    assert words in cause(exited(3, **fields)).message


def test_an_abort_after_the_work_was_done_is_told_as_what_it_is():
    tail = ["accuracy 0.97", "terminate called without an active exception"]
    message = cause(exited(0, signal="SIGABRT", tail=tail)).message
    assert "after it had printed 'accuracy 0.97'" in message
    assert "os._exit(0)" in message
    assert "os._exit(0)" not in cause(exited(0, signal="SIGSEGV", tail=["epoch 1"])).message


@pytest.mark.parametrize(("hardware", "kind"), [(True, GpuFault), (False, RankFailed)])
def test_a_gpu_that_failed_is_told_from_a_program_that_did(hardware, kind):
    faults = [{"gpu": "GPU-a", "m": "NVRM: Xid", "hardware": hardware}]
    error = cause(exited(3, 1), faults=[[], faults])
    assert type(error) is kind
    assert "GPUs of gpu2 report:\n  NVRM: Xid" in error.message
    assert type(cause(exited(3, 1), faults=[faults, []])) is RankFailed


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: EADDRINUSE",
        "tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server",
    ],
    ids=["torch", "tensorflow"],
)
def test_a_port_that_was_taken_has_a_class_of_its_own(words):
    """Case B41."""
    assert isinstance(cause(raised(0, words)), PortTaken)


ABORT = "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1)"


def test_the_rank_that_had_mpirun_kill_all_is_the_cause_whoever_was_seen_to_end_first():
    trace = [TRACEBACK, FRAME, "ValueError: lr"]
    aborting = exited(
        3, signal="SIGKILL", t=1.1, by_us=True, traceback=trace, tail=[*trace, ABORT, "[cli_3]: x"]
    )
    error = cause(exited(0, signal="SIGKILL", t=1.0), aborting)
    assert error.rank == 3
    assert "it had called MPI_Abort" in error.message
    assert cause(exited(None, 1, t=1.0), aborting).rank == 3
