"""What the task's log shows already: how far a journal is safe there, and what comes twice."""

from __future__ import annotations

import time
from collections import Counter, deque

SAFE_AFTER = 5.0  # seconds after which a line has surely reached the task's log


class Progress:
    """How far a journal was read, and how much of that will survive whoever reads it.

    A line goes to the log through another process. If both are killed, what was between them is
    lost, so that it must not have been acknowledged.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()
        self._safe: int | None = None

    def reached(self, offset: int) -> None:
        """Note that all lines up to ``offset`` have been logged now."""
        self._recent.append((time.monotonic(), offset))

    def answer(self) -> str:
        """Return what to tell the agent; whatever it is, it renews the lease."""
        while self._recent and time.monotonic() - self._recent[0][0] > SAFE_AFTER:
            self._safe = self._recent.popleft()[1]
        return "renew" if self._safe is None else f"ack {self._safe}"


class Echo:
    """Lines that an earlier watcher has logged, but perhaps not acknowledged: they come again."""

    def __init__(self, lines: Counter[str] | None = None) -> None:
        self._lines = lines or Counter[str]()

    def has(self, line: str) -> bool:
        """Return whether a line is such a one; each counts once."""
        known = self._lines[line] > 0
        if known:
            self._lines[line] -= 1
        return known
