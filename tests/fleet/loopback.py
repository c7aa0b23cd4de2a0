"""A host that is only an sshd of the current user on loopback, where namespaces cannot be had."""

from __future__ import annotations

import os
import pwd
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fleet import processes, sshd
from tests.fleet.host import Host
from tests.fleet.record import Mark

if TYPE_CHECKING:
    from collections.abc import Sequence


class LoopbackHost(Host):
    """An sshd with a port, host key and home of its own; all else is this machine's."""

    @property
    def user(self) -> str:
        """The current user."""
        return pwd.getpwuid(os.geteuid()).pw_name

    @property
    def home(self) -> Path:
        """The home that its sessions see."""
        return self.folder / "home"

    @property
    def mark(self) -> str:
        """The environment variable by which all that it starts is found again."""
        return f"TEST_HOST={self.fleet.id}/{self.name}"

    def up(self, public_key: str) -> None:
        """Make the host and let a key log in."""
        for path in (self.home, self.log.parent):
            path.mkdir(parents=True)
        self.own.host_key = sshd.make_key(self.folder / "host_key")
        self.own.port = free_port(self.address)
        self.own.options = {
            "Port": str(self.own.port),
            "ListenAddress": self.address,
            "HostKey": str(self.folder / "host_key"),
            "PidFile": str(self.folder / "sshd.pid"),
            "AuthorizedKeysFile": str(self.home / ".ssh/authorized_keys"),
            "StrictModes": "no",  # it would look at every folder above, which are not ours
        }
        self.authorize(public_key)
        self.start_sshd()

    def down(self) -> None:
        """End all of the host."""
        processes.end(self.pids)

    def command(self, argv: Sequence[str], user: str | None = None) -> list[str]:
        """Return the command that runs argv in the host's home, with its environment."""
        if user not in (None, self.user):
            raise self._unavailable(f"a user {user!r}")
        return ["env", f"--chdir={self.home}", f"HOME={self.home}", self.mark, *argv]

    def pids(self) -> list[int]:
        """Return what runs on the host."""
        # sshd writes its title over its environment, but keeps its log open.
        return sorted({*processes.with_open(self.log), *processes.with_environment(self.mark)})

    def users(self) -> dict[int, str]:
        """Return this machine's users by their numbers."""
        return processes.users(Path("/etc/passwd"))

    def start_sshd(self) -> None:
        """Start the SSH server as `own.options` say, and return once it greets."""
        path = self.folder / "sshd_config"
        fixed = f"HOME={self.home} {self.mark}"
        options = {**self.own.options, "SetEnv": f"{fixed} {self.own.options.get('SetEnv', '')}"}
        path.write_text(sshd.config(options))
        start = [sshd.program(), "-f", str(path), "-E", str(self.log)]
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # root's sshd insists on it
        self.exec(start)
        sshd.wait_for_greeting(self.address, self.port, self.log)
        self.own.sshd = Mark.of(int((self.folder / "sshd.pid").read_text()))
        self.fleet.save()

    def stop_sshd(self) -> None:
        """End the sshd that listens; the sessions that it let in go on."""
        if self.own.sshd is not None:
            self.own.sshd.end(signal.SIGTERM)


def free_port(address: str) -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as trial:
        trial.bind((address, 0))
        return int(trial.getsockname()[1])
