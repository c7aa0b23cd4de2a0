"""What the last words of a rank tell: that it failed by itself, or because of another one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What a rank says when another one has gone. Ranks do not see why, only that a connection ended.
PULLED_DOWN = re.compile(
    "|".join(
        (
            r"Connection closed by peer|Connection reset by peer|Broken pipe",  # gloo, sockets
            r"Timed out waiting \d+ms for (recv|send) operation",  # gloo
            r"remote process exited or there was a network error|ncclRemoteError",  # NCCL
            r"NCCL communicator was aborted|Watchdog caught collective operation timeout",
            r"failed to pass monitoredBarrier",
            r"Failed to recv, got 0 bytes|DistNetworkError|DistStoreError",  # c10d's store
            r"The client socket has (timed out|failed to connect)",
            r"MPI_ABORT was invoked|BAD TERMINATION OF ONE OF|MPI_ERR_PROC_FAILED",
            r"errors_impl\.UnavailableError|tasks are unhealthy|Error reported from /job:",  # TF
            r"KeyboardInterrupt|SignalException: Process \d+ got signal",  # asked to end
        )
    )
)
# What a rank of MPICH or Intel MPI says when it ends all ranks, itself included.
_ABORTS = re.compile(r"application called MPI_Abort\(")
# Signals by which libraries end a rank that has lost the others; any other is its own fault.
_LOST_THE_OTHERS = (None, "SIGABRT", "SIGTERM", "SIGPIPE")

PORT_TAKEN = re.compile(
    r"EADDRINUSE|[Aa]ddress already in use"
    r"|Could not start gRPC server|No address added out of total",  # TensorFlow's, gRPC's for JAX
    re.ASCII,
)

_LAST_LINES = 20
_NOT_A_WORD = re.compile(
    r"\s*$|terminate called|\s*what\(\):|Fatal Python error|Aborted|(Current t|T)hread 0x|"
    r"\s+<no Python frame>|\s+File |Extension modules"
)


def last_words(exit_: Mapping[str, Any]) -> str:
    """Return why a rank itself says that it ended: its exception, else the end of its log."""
    trace: Sequence[str] = exit_.get("traceback") or ()
    if not trace:
        return "\n".join(exit_["tail"][-_LAST_LINES:])
    frames = [at for at, line in enumerate(trace) if line.startswith("  ")]
    return "\n".join(trace[frames[-1] + 1 if frames else 0 :])


def was_pulled_down(exit_: Mapping[str, Any]) -> bool:
    """Return whether a rank failed because another one had gone, as far as it says."""
    if exit_["signal"] == "SIGTERM":  # torchrun's, for those that live on
        return not has_reason(exit_)
    if has_aborted(exit_):
        return False
    words = last_words(exit_)
    said = PULLED_DOWN.search(words) and not PORT_TAKEN.search(words)
    return exit_["signal"] in _LOST_THE_OTHERS and bool(said)


def has_reason(exit_: Mapping[str, Any]) -> bool:
    """Return whether a rank that was asked to end had failed before, and only not ended yet.

    Its exception is the last that it printed then: one that it survived may stand anywhere.
    """
    trace, tail = exit_.get("traceback"), exit_["tail"]
    if has_aborted(exit_):
        return True
    last = bool(trace and tail and tail[-1].endswith(trace[-1]))
    return bool(trace) and (bool(exit_["code"]) or last) and not _ended_when_asked(exit_)


def has_aborted(exit_: Mapping[str, Any]) -> bool:
    """Return whether a rank has asked mpirun to kill all ranks, and was killed with them."""
    return any(map(_ABORTS.search, exit_["tail"][-_LAST_LINES:]))


def _ended_when_asked(exit_: Mapping[str, Any]) -> bool:
    return bool(PULLED_DOWN.search(last_words(exit_)))


def last_printed(exit_: Mapping[str, Any]) -> str | None:
    """Return the last line that the program itself had printed."""
    return next((line for line in reversed(exit_["tail"]) if not _NOT_A_WORD.match(line)), None)


def ended_in_finalizer(exit_: Mapping[str, Any]) -> bool:
    """Return whether a native thread aborted while the interpreter was already ending."""
    said = "\n".join(exit_["tail"])
    return exit_["signal"] == "SIGABRT" and (
        "terminate called without an active exception" in said or "<no Python frame>" in said
    )
