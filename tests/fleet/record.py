"""A record of each fleet that stands, so that what a killed run left is found and ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fleet import wait

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator


def state_root() -> Path:
    """Return where fleets keep their state: programs can run there, unlike in many a /run."""
    if os.geteuid() == 0:
        return Path("/var/lib/distributed-training/fleets")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "distributed-training" / "fleets"


def boot_id() -> str:
    """Return what tells this machine's current boot from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if there is none or it is dead."""
    try:
        # The command name stands in parentheses and may hold blanks and parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class Mark:
    """One process of one boot, told from a later one with the same number."""

    pid: int
    started: int | None
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Mark:
        """Mark the process that has this number now."""
        return cls(pid, start_time(pid), boot_id())

    def alive(self) -> bool:
        """Tell whether that process still runs."""
        return self.started is not None and self == Mark.of(self.pid)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is still the same, and wait until it has ended."""
        if self.alive():
            os.kill(self.pid, number)
        wait.until(lambda: not self.alive(), f"process {self.pid} does not end")


@dataclass(slots=True)
class HostRecord:
    """What must be known of a host to find it again from another process."""

    name: str
    number: int
    address: str
    port: int = 22
    interface: str = "eth0"
    host_key: str = ""
    options: dict[str, str] = field(default_factory=dict)
    sshd: Mark | None = None


@dataclass(slots=True)
class Record:
    """One fleet: who stands behind it, and its hosts."""

    id: str
    kind: str
    network: str
    owner: Mark | None
    boot_id: str
    hosts: list[HostRecord] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the fleet keeps its state."""
        return state_root() / self.id

    def abandoned(self) -> bool:
        """Tell whether its owner is gone, or this machine has booted since."""
        return self.boot_id != boot_id() or (self.owner is not None and not self.owner.alive())

    def save(self) -> None:
        """Write the record, whole or not at all."""
        new = self.folder / "fleet.json.new"
        new.write_text(json.dumps(asdict(self), indent=2) + "\n")
        new.replace(self.folder / "fleet.json")

    def forget(self) -> None:
        """Remove the folder; ranks may have made folders in it that even we could not empty."""
        for parent, names, _ in os.walk(self.folder):
            for folder in (Path(parent) / name for name in names):
                if not folder.is_symlink():
                    folder.chmod(0o700)
        shutil.rmtree(self.folder, ignore_errors=True)


def _mark(value: dict[str, Any] | None) -> Mark | None:
    return Mark(**value) if value else None


def load(fleet_id: str) -> Record:
    """Read a fleet's record.

    :raises LookupError: if no such fleet stands
    """
    path = state_root() / fleet_id / "fleet.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise LookupError(f"no fleet {fleet_id!r} stands here: {path} is missing") from None
    hosts = [HostRecord(**{**host, "sshd": _mark(host["sshd"])}) for host in values.pop("hosts")]
    return Record(**{**values, "owner": _mark(values["owner"]), "hosts": hosts})


def standing() -> list[Record]:
    """Return the record of every fleet of this user."""
    found = []
    for path in sorted(state_root().glob("*/fleet.json")):
        with contextlib.suppress(LookupError):  # somebody takes it down just now
            found.append(load(path.parent.name))
    return found


@contextlib.contextmanager
def registry() -> Iterator[None]:
    """Hold the lock under which fleets are entered and cleaned up."""
    state_root().mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state_root() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def enter(kind: str, network: str, *, keep: bool) -> Record:
    """Enter a new fleet, under the lock, before any of it exists."""
    owner = None if keep else Mark.of(os.getpid())
    record = Record(secrets.token_hex(3), kind, network, owner, boot_id())
    record.folder.mkdir(mode=0o700)
    record.save()
    return record
