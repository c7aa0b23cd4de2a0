"""What the log shows is acknowledged late, and what comes again is shown once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from distributed_training.run import shown
from distributed_training.run.shown import SAFE_AFTER, Echo, Progress

if TYPE_CHECKING:
    import pytest


def test_lines_are_acknowledged_once_they_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(shown.time, "monotonic", lambda: now)
    progress = Progress()
    progress.reached(10)
    assert progress.answer() == "renew"
    now += SAFE_AFTER + 1
    progress.reached(20)
    assert progress.answer() == "ack 10"
    now += SAFE_AFTER + 1
    assert progress.answer() == "ack 20"


def test_a_line_that_comes_again_is_known_as_often_as_it_was_logged() -> None:
    asked = []

    def logged(host: str, since: float) -> dict[str, int]:
        asked.append((host, since))
        return {"[rank 0 a] x": 2}

    echo = Echo(logged)
    asyncio.run(echo.look_up("a", 7.0))
    assert [echo.has("a", "[rank 0 a] x") for _ in range(3)] == [True, True, False]
    assert not echo.has("a", "[rank 0 a] y")
    assert asked == [("a", 7.0)]


def test_without_an_earlier_watcher_no_line_comes_again() -> None:
    echo = Echo()
    asyncio.run(echo.look_up("a", 7.0))
    assert not echo.has("a", "[rank 0 a] x")
