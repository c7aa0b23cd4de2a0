"""Processes of the host, told from later ones with the same number."""

from __future__ import annotations

import contextlib
import os
import signal

from .facts import user_name
from .files import read_text

TYPE_CHECKING = False


class Process:
    """A process, told by its start time from a later one with the same number."""

    __slots__ = ("parent", "pid", "start")

    def __init__(self, pid: int, start: int, parent: int = 0) -> None:
        self.pid = pid
        self.start = start
        self.parent = parent

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """Return a process that has not ended."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The program's name stands in brackets and may hold blanks and brackets.
                cells = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        # A main thread that has ended looks like a zombie, though others run on.
        ended = cells[0] in b"ZX" and int(cells[17]) <= 1
        return None if ended else cls(pid, int(cells[19]), int(cells[1]))

    @property
    def key(self) -> tuple[int, int]:
        """Return what no other process of this host shares."""
        return self.pid, self.start

    def alive(self) -> bool:
        """Tell whether this very process still runs."""
        now = Process.find(self.pid)
        return now is not None and now.start == self.start

    def send(self, number: int) -> None:
        """Signal this very process, unless it has ended."""
        handle = process_handle(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.alive():
                if handle is None:
                    os.kill(self.pid, number)
                else:
                    signal.pidfd_send_signal(handle, number)
        if handle is not None:
            os.close(handle)


def process_handle(pid: int) -> int | None:
    """Return a handle that stays with a process, where Python and the kernel have them."""
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None


def process_table() -> dict[int, Process]:
    """Return every process of the host that has not ended."""
    found = (Process.find(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def bears(pid: int, mark: bytes) -> bool:
    """Tell whether one of this user's processes was started with a job's mark."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    return read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def process_user(pid: int) -> str:
    """Return the user of a process."""
    with contextlib.suppress(OSError):
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    return "unknown"
