"""Memory that ran out: who was killed for it, and how much there was."""

from __future__ import annotations

import os
import re
import time

from .files import link_of, read_text
from .kernel import KILLED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .kernel import KernelLog


OOM_WINDOW = 10.0  # seconds that a large process may take to be gone after it was killed
CHILD_KILLED = re.compile(r"killed by signal: Killed|<Signals\.SIGKILL")
OWN_PIDS = "pid:[4026531836]"  # the kernel's first number space, in which its log speaks


class OomKills:
    """Tells whether the kernel killed a process because memory ran out."""

    def __init__(self, log: KernelLog) -> None:
        self.log = log
        self.folder = memory_cgroup()
        self._before = self._last = self.count()
        self._noted = time.monotonic()

    def count(self) -> int:
        """Return how many processes were killed in our cgroup, or on the host, up to now."""
        counters = ("memory.events.local", "memory.events", "memory.oom_control")
        for path in (*(os.path.join(self.folder, each) for each in counters), "/proc/vmstat"):
            match = re.search(r"^oom_kill (\d+)", read_text(path), re.MULTILINE)
            if match:
                return int(match.group(1))
        return 0

    def note(self) -> None:
        """Forget kills that are too old to be why a process ends now."""
        if time.monotonic() > self._noted + OOM_WINDOW:
            self._before, self._last, self._noted = self._last, self.count(), time.monotonic()

    def evidence(self, pid: int | None) -> list[str]:
        """Return what shows that a process was killed so, nothing if it was not.

        :param pid: None: a child of the process may have been killed in its place
        """
        told = [line for line in self.log.read() if KILLED.search(line)]
        if told and pid and link_of("/proc/self/ns/pid") == OWN_PIDS:
            # The log names them all: a kill of another job in this cgroup is not ours.
            told = [line for line in told if pid in map(int, KILLED.findall(line))]
            return [*told, memory_limit(self.folder)] if told else []
        if self.count() <= self._before:
            return []
        self._before += 1  # each kill explains one end
        return [memory_limit(self.folder)]


def memory_cgroup() -> str:
    """Return the folder of our cgroup that counts memory, "" where none can be seen."""
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            base = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
            # In a container the path may be the host's, and our own cgroup the topmost to be seen.
            for folder in (base + path, base):
                if any(os.path.exists(f"{folder}/memory.{x}") for x in ("events", "oom_control")):
                    return folder.rstrip("/")
    return ""


def memory_limit(folder: str) -> str:
    """Return in words how much memory there is: the least limit of a cgroup and those around it."""
    limits = []
    while folder.startswith("/sys/fs/cgroup"):
        for limit, peak in (
            ("memory.max", "memory.peak"),
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        ):
            size = read_text(os.path.join(folder, limit)).strip()
            if size.isdigit() and int(size) < 1 << 60:  # else none
                used = read_text(os.path.join(folder, peak)).strip()
                limits.append((int(size), used, folder))
        folder = os.path.dirname(folder)
    if not limits:
        total = re.search(r"MemTotal: *(\d+)", read_text("/proc/meminfo"))
        return f"the host has {int(total.group(1)) >> 10 if total else '?'} MiB of memory"
    least, used, folder = min(limits)
    most = f", of which up to {int(used) >> 20} MiB were used" if used.isdigit() else ""
    return f"the memory limit is {least >> 20} MiB (cgroup {folder}){most}"
