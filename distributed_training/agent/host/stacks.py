"""The stacks of a rank's processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from .files import read_text
from .members import Members
from .processes import process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node import Node
    from .processes import Process
    from .records import Json


STACKS_SIGNAL = signal.SIGRTMAX - 7  # sitecustomize.py, which runs in every rank, has the same
STACKS_PAUSE = 0.1  # they come in small pieces, and are whole when none has come for so long
STACKS_LIMIT, STACKS_SHOWN = 1 << 20, 16 << 10  # of one process: in a file, in an answer


class Witness:
    """A process of a rank, which can be asked for its stacks if our sitecustomize ran in it.

    Then it holds a file open for them, and lives through our signal. Anything else would be killed
    by it: what runs no Python, or Python without that file, or a program that replaced it.
    """

    def __init__(self, process: Process, site: str) -> None:
        self.process = process
        # Not its arguments: they may hold secrets, and this goes into logs.
        self.command = read_text(f"/proc/{process.pid}/comm").strip()
        self.state, caught = condition(process.pid)
        self.fd = self._file(os.path.join(site, "stacks-")) if caught else None
        self.file = os.fstat(self.fd).st_ino if self.fd is not None else None
        self.text = ""
        self.by: str | None = None
        self._begin: int | None = None
        self._size = 0
        self._grew = 0.0

    def _file(self, prefix: str) -> int | None:
        folder = f"/proc/{self.process.pid}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if os.readlink(path).startswith(prefix):
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return None

    def answered(self) -> bool:
        """Ask, and tell whether the answer is there."""
        assert self.fd is not None
        size, now = os.fstat(self.fd).st_size, time.monotonic()
        if self._begin is None:
            self._begin = self._size = size
            self.process.send(STACKS_SIGNAL)
        elif size > self._size:
            self._size, self._grew = size, now
        elif size > self._begin and now > self._grew + STACKS_PAUSE:
            text = os.pread(self.fd, STACKS_LIMIT, self._begin).decode("utf-8", "replace")
            self.text, self.by = text, "faulthandler"
        return bool(self.text) or not self.process.alive()

    def told(self) -> Json:
        """Return what is known of the process."""
        known = {"pid": self.process.pid, "command": self.command, "state": self.state}
        return {**known, "by": self.by, "text": self.text[:STACKS_SHOWN]}


def condition(pid: int) -> tuple[str, bool]:
    """Return what a process waits for in the kernel, and whether it catches our signal."""
    text = read_text(f"/proc/{pid}/status")
    fields = dict(re.findall(r"^(State|SigCgt):\s*(.*)$", text, re.MULTILINE))
    place = read_text(f"/proc/{pid}/wchan")
    state = fields.get("State", "gone") + (f" in {place}" if place.strip("0") else "")
    return state, bool(int(fields.get("SigCgt", "0"), 16) >> (STACKS_SIGNAL - 1) & 1)


def witnesses_of(node: Node, pid: int) -> list[Witness]:
    """Return a rank's processes, its first one and those below it, oldest first."""
    table = process_table()
    below = Members.descendants(table, {pid}) | ({pid} & table.keys())
    processes = sorted((table[each] for each in below), key=lambda process: process.start)
    return [Witness(process, os.path.realpath(node.at("site"))) for process in processes]


def question(witnesses: Sequence[Witness], until: float) -> None:
    """Let all processes write their stacks; forked ones share a file and do so in turn."""
    waiting: dict[int | None, list[Witness]] = {}
    for each in witnesses:
        if each.fd is not None:
            waiting.setdefault(each.file, []).append(each)
    while waiting and time.monotonic() < until:
        for file, queue in list(waiting.items()):
            if queue[0].answered() and not (queue.pop(0) and queue):
                del waiting[file]
        time.sleep(0.02)


def spy(witness: Witness) -> None:
    """Let py-spy look into a process that says nothing, where it is installed and may."""
    import shutil
    import subprocess

    program = shutil.which("py-spy", path=os.environ.get("PATH", "") + ":/usr/local/bin")
    if program and not witness.text:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [program, "dump", "--full-filenames", "--pid", str(witness.process.pid)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5)
            threads = done.stdout.decode("utf-8", "replace").partition("\nThread ")
            witness.text = "".join(threads[1:]).lstrip()  # what stands before are the arguments
            witness.by = "py-spy" if witness.text else None


def keep_stacks(node: Node, witnesses: dict[str, list[Witness]]) -> None:
    """Write all stacks beside the logs, whole."""
    with open(node.at("logs", "stacks.log"), "a", encoding="utf-8") as file:
        for rank, group in sorted(witnesses.items()):
            for each in group:
                file.write(f"rank {rank}, process {each.process.pid} ({each.command}), ")
                file.write(f"{each.state}:\n{each.text or 'no stacks'}\n")
