"""The setup as a shell sees it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAITING = """
import subprocess, sys
from dev import setup
def prepare(task):
    subprocess.run(["sh", "-c", "echo begun; exec cat"])
setup.prepare = prepare
sys.exit(setup.main(["demo"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_one_line(number: signal.Signals) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=ROOT,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as setup:
        assert setup.stdout is not None
        assert setup.stdout.readline() == "begun\n"
        setup.send_signal(number)
        said, complaint = setup.communicate(timeout=60)
    assert (said, setup.returncode) == ("", 128 + number)
    assert complaint == f"stopped by {number.name}; what was begun is finished next time\n"
