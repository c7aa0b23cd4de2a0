"""Programs that the demo and the tests start end with them, however those end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dev.programs import Program, session
from tests.fleet import wait
from tests.fleet.record import Mark

ROOT = Path(__file__).parents[2]
# A program with a child in its session, and one in a session of its own.
COMMAND = "sleep 600 & setsid sleep 600 & echo begun; wait"
PARENT = """
import sys
from pathlib import Path
from dev.programs import Program
program = Program("it", ["sh", "-c", sys.argv[1]], Path(sys.argv[2]), {"PATH": sys.argv[3]})
program.start()
print(program.process.pid, flush=True)
sys.stdin.read()
"""


def begun(log: Path) -> None:
    wait.until(lambda: "begun" in log.read_text(), "the program does not begin", timeout=60)


def test_programs_end_when_who_started_them_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", PARENT, COMMAND, str(log), os.environ["PATH"]]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        leader = int(parent.stdout.readline())
        begun(log)
        members = [Mark.of(process.pid) for process in session(leader)]
        parent.kill()
    assert len(members) == 3
    wait.until(lambda: not any(mark.alive() for mark in members), "programs live on", timeout=60)


def test_a_program_starts_with_its_arguments_and_no_input(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:], repr(sys.stdin.read()))"]
    program = Program("it", [*command, "a b", "$$", ""], tmp_path / "log", os.environ)
    program.run(timeout=60)
    assert program.log.read_text() == "['a b', '$$', ''] ''\n"
