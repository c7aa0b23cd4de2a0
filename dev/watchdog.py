"""Ends the programs of a process that was killed before it could, and what lives in their sessions.

Reads process numbers, one a line: of a program that begins, or with a minus of one that has ended.
Holding the other end of the pipe is being alive.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from dev.programs import session

if TYPE_CHECKING:
    from collections.abc import Iterable


def main(lines: Iterable[str]) -> None:
    """Wait until nobody holds the pipe; end what runs then."""
    running: set[int] = set()
    for number in map(int, lines):
        if number > 0:
            running.add(number)
        else:
            running.discard(-number)
    for leader in running:
        _end(leader)


def _end(leader: int) -> None:
    """Kill a session until nothing of it lives; members may have made more meanwhile."""
    deadline = time.monotonic() + 10
    while (alive := [p for p in session(leader) if _lives(p)]) and time.monotonic() < deadline:
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    main(sys.stdin)
