"""How busy a host is, its GPUs and each rank of a job, from one look to the next."""

from __future__ import annotations

import contextlib
import os
import time

from .files import read_text
from .gpus import GpuUse
from .processes import process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node
    from .processes import Process
    from .records import Json

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """What a node uses. A look costs some milliseconds, and never waits for anything."""

    def __init__(self, node: Node) -> None:
        self._mark = b"DT_JOB_MARK=" + node.mark.encode()
        self._gpus = GpuUse()
        self._ranks: dict[tuple[int, int], str] = {}  # of processes, once they are known
        self._ticks: dict[tuple[int, int], int] = {}
        self._machine = machine_ticks()
        self._looked = time.monotonic()

    def look(self) -> Json:
        """Return what has been used since the last look.

        ``cpu`` is the share of the host's cores, ``memory`` has the bytes in use and in all;
        ``ranks`` have the cores that each has kept busy, and its resident bytes; ``gpus`` have the
        share of time in which each was busy, and its bytes in use and in all.
        """
        seen: Json = {"memory": machine_memory(), "ranks": self._look_at_ranks()}
        (busy, every), before = machine_ticks(), self._machine
        self._machine = busy, every
        if every > before[1]:
            seen["cpu"] = round((busy - before[0]) / (every - before[1]), 3)
        if gpus := self._gpus.look():
            seen["gpus"] = gpus
        return seen

    def _look_at_ranks(self) -> Json:
        seconds = max(1e-3, time.monotonic() - self._looked)
        self._looked += seconds
        ranks: Json = {}
        before, self._ticks = self._ticks, {}
        for process in process_table().values():
            rank = self._rank_of(process)
            if rank is not None and (used := use_of(process.pid)):
                self._ticks[process.key], memory = used
                ticks = self._ticks[process.key] - before.get(process.key, used[0])
                busy, held = ranks.get(rank, (0, 0))
                ranks[rank] = round(busy + ticks / TICKS / seconds, 2), held + memory
        self._ranks = {key: rank for key, rank in self._ranks.items() if key in self._ticks}
        return ranks

    def _rank_of(self, process: Process) -> str | None:
        """Return the rank that a process belongs to; what a rank starts inherits its variables."""
        if process.key not in self._ranks:
            rank = rank_of(process.pid, self._mark)
            if rank is None:  # it may yet become one: a process is forked before it is executed
                return None
            self._ranks[process.key] = rank
        return self._ranks[process.key]


def rank_of(pid: int, mark: bytes) -> str | None:
    """Return the rank that a process of this user was started for in a job."""
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if mark in variables:
                found = [each[8:] for each in variables if each.startswith(b"DT_RANK=")]
                return found[0].decode() if found and found[0].isdigit() else None
    return None


def use_of(pid: int) -> tuple[int, int] | None:
    """Return the ticks of a clock that a process was busy for, and its resident bytes."""
    cells = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    resident = read_text(f"/proc/{pid}/statm").split()
    if len(cells) < 13 or len(resident) < 2:  # it has ended
        return None
    return int(cells[11]) + int(cells[12]), int(resident[1]) * PAGE


def machine_ticks() -> tuple[int, int]:
    """Return the ticks that the cores were busy for, and all."""
    cells = [int(cell) for cell in read_text("/proc/stat").partition("\n")[0].split()[1:9]]
    return sum(cells) - sum(cells[3:5]), sum(cells)


def machine_memory() -> tuple[int, int]:
    """Return the bytes that are in use and cannot be had otherwise, and all."""
    cells = dict(line.split(":") for line in read_text("/proc/meminfo").splitlines())
    total, free = (int(cells[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total - free, total
