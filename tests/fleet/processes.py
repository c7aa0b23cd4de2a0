"""What runs on a host, looked at from this machine through /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fleet import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `pid` and `ppid` as the host numbers them, `outside` as this machine does."""

    pid: int
    ppid: int
    user: str
    command: str
    outside: int


def every() -> Iterator[int]:
    """Yield the number of every process of this machine."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def in_network(namespace: Path) -> list[int]:
    """Return the processes in a network namespace; none if there is no such namespace."""
    try:
        wanted = namespace.stat().st_ino
    except FileNotFoundError:
        return []
    return [pid for pid in every() if _network(pid) == wanted]


def with_environment(entry: str) -> list[int]:
    """Return the processes that were started with an environment that holds this entry."""
    wanted = entry.encode()
    return [pid for pid in every() if wanted in _read(pid, "environ").split(b"\0")]


def with_open(path: Path) -> list[int]:
    """Return the processes that hold a file open."""
    return [pid for pid in every() if str(path) in _open_files(pid)]


def inside(pid: int) -> list[int]:
    """Return a process' numbers in its own namespace (last) and those around it."""
    return [int(number) for number in _status(pid).get("NSpid", "").split()]


def is_sshd(pid: int) -> bool:
    """Tell whether a process is OpenSSH's server (or sshd-session, as of OpenSSH 9.8)."""
    return _status(pid).get("Name", "").startswith("sshd")


def describe(pid: int, users: dict[int, str]) -> Process | None:
    """Describe one process; None if it has ended meanwhile."""
    status = _status(pid)
    numbers = inside(pid)
    if not numbers or status["State"][0] in "ZX":
        return None
    parents = inside(int(status["PPid"]))
    parent = parents[-1] if len(parents) == len(numbers) else 0
    uid = int(status["Uid"].split()[0])
    command = _read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    name = users.get(uid, str(uid))
    return Process(numbers[-1], parent, name, command or f"[{status['Name']}]", pid)


def users(passwd: Path) -> dict[int, str]:
    """Return the names of a host's users by their numbers."""
    entries = (line.split(":") for line in passwd.read_text().splitlines())
    return {int(entry[2]): entry[0] for entry in entries if len(entry) > 2}


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(pids: Callable[[], list[int]]) -> None:
    """Kill what a function finds, until it finds nothing."""

    def none_left() -> bool:
        send(signal.SIGKILL, found := pids())
        return not found

    wait.until(none_left, "processes of test hosts do not end")


def _network(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:  # it has ended, or is not ours to look at
        return None


def _open_files(pid: int) -> set[str]:
    try:
        return {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # it has ended, or is not ours to look at
        return set()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended, or is not ours to look at
        return b""


def _status(pid: int) -> dict[str, str]:
    lines = _read(pid, "status").decode(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
