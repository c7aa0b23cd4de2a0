"""What the log shows is acknowledged late, and what comes again is shown once."""

from __future__ import annotations

import asyncio
import time

from distributed_training.run.shown import SAFE_AFTER, Echo, Progress, Shown


class Known(Shown):
    """A log of which everything is known."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.until = 0.0

    def logged(self, host: str, since: float) -> dict[str, int]:
        """Tell of two lines, and note who asked."""
        self.asked.append((host, since))
        return {"[rank 0 a] x": 2}

    def written(self) -> float:
        """Tell what a test says."""
        return self.until


def test_lines_are_acknowledged_once_later_ones_are_in_the_log() -> None:
    log = Known()
    progress = Progress(log)
    progress.reached(10)
    assert progress.answer() == "renew"
    log.until = time.time()
    progress.reached(20)
    assert progress.answer() == "ack 10"
    assert progress.answer() == "ack 10"
    log.until = time.time()
    assert progress.answer() == "ack 20"


def test_of_a_log_that_cannot_be_read_lines_are_safe_after_some_seconds() -> None:
    assert time.time() - SAFE_AFTER - 1 < Shown().written() <= time.time() - SAFE_AFTER


def test_a_line_that_comes_again_is_known_as_often_as_it_was_logged() -> None:
    log = Known()
    echo = Echo(log)
    asyncio.run(echo.look_up("a", 7.0))
    assert [echo.has("a", "[rank 0 a] x") for _ in range(3)] == [True, True, False]
    assert not echo.has("a", "[rank 0 a] y")
    assert log.asked == [("a", 7.0)]


def test_without_an_earlier_watcher_no_line_comes_again() -> None:
    echo = Echo(Shown())
    asyncio.run(echo.look_up("a", 7.0))
    assert not echo.has("a", "[rank 0 a] x")
