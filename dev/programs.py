"""A program in a session of its own, and all that lives in it: ended with nothing left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Mapping

# A program is the watchdog's before it begins, so that none is missed. Its stdin is the pipe.
ENTER = 'echo $$ >&0; exec "$@" </dev/null'


class ProgramFailed(Exception):
    """Raised when a program does not do what it should; says what, and what it logged last."""


def session(leader: int) -> list[psutil.Process]:
    """Return the processes of the session that ``leader`` began, and all that descend from it."""
    members = set()
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                members.add(process)
            if process.pid == leader:
                members.update(process.children(recursive=True))
        except (OSError, psutil.NoSuchProcess):
            continue  # it ended while we looked
    return list(members)


@cache
def _watchdog() -> IO[bytes]:
    """Start what ends our programs if we are killed; return the pipe that tells it that we live."""
    watchdog = subprocess.Popen(
        [sys.executable, "-m", "dev.watchdog"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
        bufsize=0,
    )
    assert watchdog.stdin is not None
    return watchdog.stdin


@dataclass(slots=True)
class Program:
    """One program; its output goes to its log. It ends with us, even if we are killed."""

    name: str
    command: list[str]
    log: Path
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    asked: list[psutil.Process] = field(default_factory=list)  # to end

    def start(self) -> None:
        """Start it; its output goes to the end of its log."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", ENTER, "sh", *self.command],
                stdin=_watchdog(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                cwd=self.log.parent,
                start_new_session=True,
            )

    def run(self, timeout: float) -> None:
        """Run it to its end."""
        self.start()
        assert self.process is not None
        try:
            if self.process.wait(timeout):
                self.check()
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"{self.name} did not end in {timeout} s; {self.tail()}") from None
        finally:
            self.kill()

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process and (status := self.process.poll()) is not None:
            raise ProgramFailed(f"{self.name} ended with status {status}; {self.tail()}")

    def listens(self, port: int) -> bool:
        """Tell whether it, and nobody else, listens at this TCP port."""
        if self.process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            return any(
                connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                for process in session(self.process.pid)
                for connection in process.net_connections("tcp")
            )
        return False

    def ask_to_end(self) -> None:
        """Ask it to end, once: a second SIGTERM would make the scheduler hang."""
        if self.process is not None and not self.asked:
            self.asked = session(self.process.pid)
            self.process.terminate()

    def end(self, grace: float) -> None:
        """Ask it to end, insist after ``grace`` seconds, and return when nothing of it lives."""
        self.ask_to_end()
        psutil.wait_procs(self.asked, timeout=grace)
        self.kill()

    def kill(self) -> None:
        """End the program and its children at once, as a crash of its machine would."""
        if self.process is None:
            return
        alive = {*self.asked, *session(self.process.pid)}
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(BrokenPipeError):
            _watchdog().write(b"-%d\n" % self.process.pid)  # before others may have the number
        self.process.wait()
        _, left = psutil.wait_procs(alive, timeout=10)
        if left:
            raise ProgramFailed(f"{self.name} left processes that do not die: {left}")
        self.process, self.asked = None, []

    def tail(self, lines: int = 30) -> str:
        """Return the end of its log, for an error message."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n    ".join([f"{self.log} ends:", *text])
