"""A trigger that notes what Airflow does to it, for tests of what we rely on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KILL = 8.0  # seconds that its end takes


class Probe(BaseTrigger):
    """Waits for ever, and takes its time when it is killed."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what rebuilds it."""
        return "tests.e2e.probe.Probe", {"folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for ever."""
        note(self.folder, "watched")
        await asyncio.sleep(3600)
        yield TriggerEvent({})

    async def on_kill(self) -> None:
        """Note the beginning and, if Airflow lets it get there, the end."""
        note(self.folder, "kill began")
        await asyncio.sleep(KILL)
        note(self.folder, "kill finished")


def note(folder: str, what: str) -> None:
    """Note that something happens, and when."""
    with (Path(folder) / what).open("a") as file:
        file.write(f"{time.time()}\n")


def times(folder: Path, what: str) -> list[float]:
    """Return when something has happened."""
    path = folder / what
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []
