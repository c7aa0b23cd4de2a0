"""What the task's log shows already: how far a journal is safe there, and what comes twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SAFE_AFTER = 5.0  # seconds after which a line has most likely reached the task's log


class Shown:
    """The task's log, of which nothing can be read here."""

    def logged(self, host: str, since: float) -> Mapping[str, int]:
        """Return how often each line of a host was logged since a ``time.time()``."""
        return {}

    def written(self) -> float:
        """Return a ``time.time()`` until which all that was logged has reached the log."""
        return time.time() - SAFE_AFTER


class Progress:
    """How far a journal was read, and how much of that will survive whoever reads it.

    A line goes to the log through another process. If both are killed, what was between them is
    lost, so that it must not have been acknowledged.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._recent: deque[tuple[float, int]] = deque()
        self._safe: int | None = None

    def reached(self, offset: int) -> None:
        """Note that all lines up to ``offset`` have been logged now."""
        self._recent.append((time.time(), offset))

    def answer(self) -> str:
        """Return what to tell the agent; whatever it is, it renews the lease."""
        written = self._shown.written()
        while self._recent and self._recent[0][0] < written:
            self._safe = self._recent.popleft()[1]
        return "renew" if self._safe is None else f"ack {self._safe}"


class Echo:
    """Lines that an earlier watcher has logged, but not acknowledged: they come again."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._lines: dict[str, Counter[str]] = {}

    async def look_up(self, host: str, since: float) -> None:
        """Look at what was logged of a host by now: an earlier watcher may have gone on till then.

        :param since: when the first of the lines was printed that may come again
        """
        self._lines[host] = Counter(await asyncio.to_thread(self._shown.logged, host, since))

    def has(self, host: str, line: str) -> bool:
        """Return whether a line was logged already; each counts once."""
        lines = self._lines[host]
        known = lines[line] > 0
        if known:
            lines[line] -= 1
        return known
