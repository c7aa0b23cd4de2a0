"""How child processes ended."""

from __future__ import annotations

import contextlib
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Json


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_of(status: int) -> tuple[int | None, str | None]:
    """Return the exit code, or the signal, of a wait status."""
    if os.WIFSIGNALED(status):
        return None, signal_name(os.WTERMSIG(status))
    return os.WEXITSTATUS(status), None


def exit_record(name: str, rank: int | None, pid: int, status: int | None, elapsed: float) -> Json:
    """Return how a process ended; without a wait status nobody knows."""
    code, killed_by = (None, None) if status is None else exit_of(status)
    how = {"code": code, "signal": killed_by, "elapsed": round(elapsed, 3)}
    return {"name": name, "rank": rank, "pid": pid, **how}


def reaped() -> Iterator[tuple[int, int]]:
    """Yield number and wait status of each child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status
