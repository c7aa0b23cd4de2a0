"""Airflow retries what the ready-made policy lets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dev.rest import Run


def test_lost_hosts_are_retried_and_bugs_are_not(
    trigger: Callable[..., Run], tmp_path: Path
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("ghost ssh=127.0.0.1 port=9 address=127.0.0.1\n")
    run = trigger("retried", hostfile=str(hostfile))
    assert run.wait() == "failed"
    assert run.tasks() == {"bug": "failed", "nowhere": "failed", "lost": "success"}
    tries = {name: run.task(name)["try_number"] for name in run.tasks()}
    assert tries == {"bug": 1, "nowhere": 2, "lost": 2}
    assert any("ghost" in line for line in run.log("nowhere", 2))
