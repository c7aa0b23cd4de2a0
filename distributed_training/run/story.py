"""How a rank ended, in words: what a person reads first in the log of a failed task."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from distributed_training.run.symptoms import ended_in_finalizer, has_aborted, last_printed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TAIL_LINES = 30  # of the failing rank's log that the verdict repeats
_ABORTED = ": it had called MPI_Abort, upon which mpirun kills every rank"
_SHELL = 128  # what a shell adds to the number of the signal that ended a program


def story(exit_: Mapping[str, Any], host: str, faults: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the end of a rank, line by line, with all evidence there is.

    :param faults: what the host found about its GPUs
    """
    lines = [f"{name(exit_)} on {host} {how(exit_)} after {exit_['elapsed']:.1f} s"]
    lines[0] += _ABORTED if has_aborted(exit_) else _why(exit_)
    lines += (f"  {line}" for line in exit_.get("evidence", ()))
    if faults:
        lines += [f"GPUs of {host} report:", *(f"  {fault['m']}" for fault in faults)]
    trace, rest = exit_.get("traceback") or [], _after_traceback(exit_)
    if trace:
        lines += ["its traceback:", *(f"  {line}" for line in trace)]
    if warnings := [line for line in exit_.get("nccl", ()) if line not in rest]:
        lines += ["NCCL warned:", *(f"  {line}" for line in warnings)]
    if rest:
        lines += ["its log goes on:" if trace else "its log ends:", *(f"  {r}" for r in rest)]
    return lines


def is_daemon(exit_: Mapping[str, Any]) -> bool:
    """Return whether what ended stood between a launcher and the ranks of another host."""
    return str(exit_.get("name")).startswith("daemon-")


def name(exit_: Mapping[str, Any]) -> str:
    """Return what ended, as people call it."""
    if exit_["rank"] is None:
        return "a daemon of the launcher" if is_daemon(exit_) else "the launcher"
    return f"rank {exit_['rank']}" + (f" ({exit_['role']})" if exit_.get("role") else "")


def how(exit_: Mapping[str, Any]) -> str:
    """Return the status or the signal, and what it is to those who know only the other."""
    code, killed_by = exit_["code"], exit_["signal"]
    if killed_by:
        number = getattr(signal, killed_by, None)
        return f"was ended by {killed_by}" + (f" (status {_SHELL + number})" if number else "")
    if code and code > _SHELL and (said := _signal_name(code - _SHELL)):
        return f"exited with status {code} (as a shell says {said})"
    return f"exited with status {code}"


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _why(exit_: Mapping[str, Any]) -> str:
    """Return what is known beyond the status."""
    if exit_.get("alone"):
        return _alone(exit_["alone"])
    if exit_["by_us"]:
        return "; it was asked to end when it had failed already"
    if exit_.get("oom"):
        return (
            ": the kernel ended it because memory ran out; use a smaller batch or fewer loader "
            "workers, or raise the limit"
        )
    if exit_["signal"] == "SIGKILL":
        return " (often the kernel's, for want of memory: see `dmesg` on the host)"
    if exit_["signal"] in (None, "SIGTERM") or exit_.get("traceback"):
        return ""
    printed = last_printed(exit_)
    told = f", after it had printed {printed!r}" if printed else ""
    if ended_in_finalizer(exit_):
        told += (
            "; a thread of gloo or NCCL outlived the interpreter: call "
            "torch.distributed.destroy_process_group() at the end, and leave by os._exit(0)"
        )
    return told


def _alone(sizes: Mapping[str, int]) -> str:
    made = "; ".join(
        f"{library} formed a group of {size}" if size else f"{library} formed no group"
        for library, size in sizes.items()
    )
    return (
        f", but by itself: {made}. See that the script joins the other ranks, with a library that "
        "is built for what launches it; where ranks are meant to work apart, check_group=False"
    )


def _after_traceback(exit_: Mapping[str, Any]) -> list[str]:
    """Return the last lines of the log without the traceback, which is told by itself."""
    trace, tail = exit_.get("traceback"), list(exit_["tail"][-TAIL_LINES:])
    for at in reversed(range(len(tail))):
        if trace and tail[at].endswith(trace[-1]):
            return tail[at + 1 :]
    return tail
