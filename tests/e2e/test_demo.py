"""The demo as CI and other programs run it: without a terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest

from dev.demo import FOLDER, forget_killed
from tests.fleet import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    """The demo, just started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dev.demo"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.terminate()


def test_the_demo_trains_reports_and_exits(demo: subprocess.Popen[str]) -> None:
    output, _ = demo.communicate()
    outcome = last_line(output)
    assert demo.returncode == 0, output
    assert outcome.pop("accuracy") >= 0.9
    assert outcome.pop("seconds") > 0
    assert outcome == {"state": "success", "hosts": 2, "world_size": 4}
    assert "[rank 3 gpu2]" in output


def test_a_demo_that_is_stopped_in_the_middle_leaves_nothing(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if "[rank 0 gpu1]" in line:
            break
    children = descendants(demo)
    demo.send_signal(signal.SIGTERM)
    assert last_line(demo.stdout.read())["state"] == "failed"
    assert demo.wait() == 1
    assert [child for child in children if lives(child)] == []


def test_a_demo_that_is_killed_leaves_no_airflow(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    while "Airflow: starting" not in demo.stdout.readline():
        pass
    wait.until(lambda: len(components(demo)) >= 4, "Airflow does not begin", timeout=60)
    airflow = components(demo)
    home = Path(home_of(airflow[0]))
    demo.kill()
    demo.wait()
    wait.until(lambda: not any(map(lives, airflow)), "Airflow lives on", timeout=60)
    forget_killed()
    assert not home.parent.exists()


def descendants(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    return list(psutil.Process(demo.pid).children(recursive=True))


def components(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return Airflow's processes, whatever they call themselves."""
    return [child for child in descendants(demo) if FOLDER in home_of(child)]


def home_of(process: psutil.Process) -> str:
    try:
        return str(process.environ().get("AIRFLOW_HOME", ""))
    except psutil.NoSuchProcess:
        return ""


def lives(process: psutil.Process) -> bool:
    """Tell whether it runs; the first process of a container may not reap what has ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def last_line(output: str) -> Any:
    return json.loads(output.splitlines()[-1])
