"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def until(
    condition: Callable[[], bool], complaint: str, log: Path | None = None, timeout: float = 20
) -> None:
    """Return once a condition holds.

    :raises TimeoutError: if it does not in time; with the end of a log that tells why
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{complaint} within {timeout} s{_end_of(log)}")
        time.sleep(0.01)


def _end_of(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    return f"; {log} ends: {log.read_text(errors='replace')[-2000:]}"
