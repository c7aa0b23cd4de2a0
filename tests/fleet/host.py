"""What tests see of a host, whatever it is made of."""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tests.fleet import processes, sshd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.fleet.record import HostRecord, Record

WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1" && chmod "$2" -- "$1"'


class FaultUnavailable(RuntimeError):
    """This kind of host cannot suffer that."""


class Host(ABC):
    """One training host."""

    def __init__(self, fleet: Record, own: HostRecord) -> None:
        self.fleet = fleet
        self.own = own

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.user}@{self.address}:{self.port}>"

    @property
    def name(self) -> str:
        """The host name."""
        return self.own.name

    @property
    def address(self) -> str:
        """Where this machine and the other hosts reach it."""
        return self.own.address

    @property
    def port(self) -> int:
        """The port of its sshd."""
        return self.own.port

    @property
    def host_key(self) -> str:
        """The public key that its sshd shows, as `ssh-ed25519 AAAA…`."""
        return self.own.host_key

    @property
    def folder(self) -> Path:
        """Where this machine keeps what outlives the host's power."""
        return self.fleet.folder / self.name

    @property
    def log(self) -> Path:
        """What its sshd logs."""
        return self.folder / "var/log/sshd.log"

    @property
    @abstractmethod
    def user(self) -> str:
        """The ordinary user that runs ranks."""

    @abstractmethod
    def up(self, public_key: str) -> None:
        """Make the host and let a key log in."""

    @abstractmethod
    def down(self) -> None:
        """End all of the host."""

    @abstractmethod
    def command(self, argv: Sequence[str], user: str | None = None) -> list[str]:
        """Return what to run on this machine so that argv runs on the host, in a user's home."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Return the host's processes as this machine numbers them."""

    @abstractmethod
    def users(self) -> dict[int, str]:
        """Return the host's users by their numbers."""

    @abstractmethod
    def start_sshd(self) -> None:
        """Start the SSH server as `own.options` say, and return once it greets."""

    @abstractmethod
    def stop_sshd(self) -> None:
        """End the sshd that listens; the sessions that it let in go on."""

    def exec(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        stdin: str | bytes = b"",
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the host without SSH, in the home of a user (by default `self.user`)."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            self.command(argv, user), input=data, capture_output=True, timeout=timeout, check=False
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode:
            raise RuntimeError(f"{self.name}: {list(argv)} exited {done.returncode}: {err or out}")
        return subprocess.CompletedProcess(list(argv), done.returncode, out, err)

    def processes(self) -> list[processes.Process]:
        """Return all that runs on the host, looked at from outside."""
        pids = self.pids()
        users = self.users() if pids else {}
        found = (processes.describe(pid, users) for pid in pids)
        return [process for process in found if process is not None]

    def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, user: str | None = None
    ) -> None:
        """Write a file as a user of the host; a relative path starts in that user's home."""
        self.exec(["sh", "-c", WRITE, "sh", path, f"{mode:o}"], user=user, stdin=content)

    def read_file(self, path: str, *, user: str | None = None) -> str:
        """Read a text file as a user of the host; a relative path starts in that user's home."""
        return self.exec(["cat", path], user=user).stdout

    def authorize(self, public_key: str, *, user: str | None = None) -> None:
        """Let a further key log in."""
        add = "umask 077; mkdir -p .ssh && cat >> .ssh/authorized_keys"
        self.exec(["sh", "-c", add], user=user, stdin=public_key + "\n")

    def restart_sshd(self, **options: str) -> None:
        """Restart the SSH server with further options by sshd's names; "" takes one back."""
        self.stop_sshd()
        merged = {**self.own.options, **options}
        self.own.options = {name: value for name, value in merged.items() if value}
        self.own.port = int(self.own.options.get("Port", self.own.port))
        self.start_sshd()

    def clock_offset(self, seconds: float) -> None:
        """Let what SSH starts from now on see a clock that is wrong by so many seconds."""
        self.restart_sshd(SetEnv=sshd.wrong_clock(seconds))

    def session_pids(self) -> list[int]:
        """Return the sshd processes that each serve a login, not the one that listens."""
        listening = self.own.sshd.pid if self.own.sshd else None
        return [pid for pid in self.pids() if processes.is_sshd(pid) and pid != listening]

    def drop_connections(self) -> None:
        """Break every SSH connection; what they had started lives on."""
        processes.send(signal.SIGKILL, self.session_pids())

    def freeze(self) -> None:
        """Let the SSH sessions fall silent while TCP lives on."""
        processes.send(signal.SIGSTOP, self.session_pids())

    def thaw(self) -> None:
        """Let frozen SSH sessions go on."""
        processes.send(signal.SIGCONT, self.session_pids())

    def noisy_bashrc(self, greeting: str = "welcome") -> None:
        """Let ~/.bashrc print a greeting first, as it then does before sftp too."""
        add = 'touch .bashrc && { echo "echo $1"; cat .bashrc; } > .noisy && mv .noisy .bashrc'
        self.exec(["sh", "-c", add, "sh", greeting])

    def power_cut(self) -> None:
        """Take the power away: from now on silence, and nothing runs."""
        raise self._unavailable("a power cut")

    def power_on(self) -> None:
        """Boot again, with another boot id; the homes and /etc are as they were."""
        raise self._unavailable("a power cut")

    def cut_cable(self) -> None:
        """Pull the network cable; the host runs on and keeps its address."""
        raise self._unavailable("a cut cable")

    def plug_cable(self) -> None:
        """Put the network cable back."""
        raise self._unavailable("a cut cable")

    def add_interface(self, name: str, address: str) -> None:
        """Add an interface that leads nowhere, as Docker's bridge does."""
        raise self._unavailable("an interface of its own")

    def add_nic(self, name: str, address: str) -> None:
        """Add a second network card on the same switch."""
        raise self._unavailable("an interface of its own")

    def set_password(self, password: str) -> None:
        """Give the user a password, and let it log in with it."""
        raise self._unavailable("a password of its own")

    def forget_names(self) -> None:
        """Leave in /etc/hosts only its own name, at 127.0.1.1, as Debian's installer does."""
        raise self._unavailable("an /etc/hosts of its own")

    def _unavailable(self, what: str) -> FaultUnavailable:
        return FaultUnavailable(
            f"{self.name}: {what} needs a host in namespaces, and this is an sshd on loopback; "
            "run as root on Linux"
        )
