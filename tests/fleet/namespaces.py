"""A host made of namespaces: one machine in all that a training job can see."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fleet import network, processes, sshd, wait
from tests.fleet.furniture import USER, furnish
from tests.fleet.host import Host
from tests.fleet.record import Mark, state_root

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKOUT = Path(__file__).resolve().parents[2]
BOOT = Path(__file__).with_name("boot.sh")
PROGRAMS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "tini": "tini",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
}
SPACES = ["--mount", "--uts", "--ipc", "--net", "--pid"]
# Held so that they can be waited for; a process nobody waits for stays as a zombie.
CHILDREN: list[subprocess.Popen[bytes]] = []
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MissingPrivilege(RuntimeError):
    """Hosts in namespaces cannot be had here."""


def missing() -> str | None:
    """Say why this process cannot make hosts of namespaces, and what to do; None if it can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root: run it as root"
    packages = {
        package for name, package in PROGRAMS.items() if shutil.which(name, path=PATH) is None
    }
    if packages:
        return (
            f"hosts in namespaces need more programs: apt-get install {' '.join(sorted(packages))}"
        )
    trial = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip()
        return f"root may not make namespaces here ({reason}): use a privileged container"
    return None


class NamespaceHost(Host):
    """A host with kernel namespaces, users and an sshd on port 22 of its own."""

    @property
    def user(self) -> str:
        """The ordinary user that runs ranks."""
        return USER

    @property
    def space(self) -> str:
        """The name of its network namespace."""
        return network.host_space(self.fleet, self.name)

    @property
    def etc(self) -> Path:
        """Its /etc, as this machine names it."""
        return self.folder / "etc"

    def up(self, public_key: str) -> None:
        """Make the host and let a key log in."""
        furnish(self.fleet, self.own, public_key)
        self.power_on()

    def down(self) -> None:
        """End all of the host."""
        processes.end(self.pids)
        for child in CHILDREN:
            child.poll()
        network.remove(self.space)

    def command(self, argv: Sequence[str], user: str | None = None) -> list[str]:
        """Return what to run on this machine so that argv runs on the host, in a user's home."""
        name = user or self.user
        enter = ["nsenter", "--target", str(self._outside(1)), *SPACES]
        become = ["setpriv", "--reuid", name, "--regid", name, "--init-groups", "--reset-env"]
        return [*enter, *become, "sh", "-c", 'cd && exec "$@"', "sh", *argv]

    def pids(self) -> list[int]:
        """Return the host's processes as this machine numbers them."""
        return processes.in_network(network.path(self.space))

    def processes(self) -> list[processes.Process]:
        """Return all that runs on the host, without the program outside that keeps it."""
        return [
            process for process in super().processes() if len(processes.inside(process.outside)) > 1
        ]

    def users(self) -> dict[int, str]:
        """Return the host's users by their numbers."""
        return processes.users(self.etc / "passwd")

    def start_sshd(self) -> None:
        """Start the SSH server as `own.options` say, and return once it greets."""
        (self.etc / "ssh/sshd_config").write_text(sshd.config(self.own.options))
        self.exec([sshd.program(), "-E", "/var/log/sshd.log"], user="root")
        sshd.wait_for_greeting(self.address, self.port, self.log)
        listening = int(self.read_file("/run/sshd.pid", user="root"))
        self.own.sshd = Mark.of(self._outside(listening))
        self.fleet.save()

    def stop_sshd(self) -> None:
        """End the sshd that listens; the sessions that it let in go on."""
        if self.own.sshd is not None:
            self.own.sshd.end(signal.SIGTERM)

    def power_cut(self) -> None:
        """Take the power away: from now on silence, and nothing runs."""
        # Dying processes would still close their connections; without power nobody does.
        network.unplug(self.fleet, self.own)
        self.down()

    def power_on(self) -> None:
        """Boot again, with another boot id; the homes and /etc are as they were."""
        if network.path(self.space).exists():
            raise RuntimeError(f"{self.name} has power already: cut it first")
        network.connect(self.fleet, self.own)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self._boot()
        self.start_sshd()

    def cut_cable(self) -> None:
        """Pull the network cable; the host runs on and keeps its address."""
        network.set_cable(self.fleet, self.own, plugged=False)

    def plug_cable(self) -> None:
        """Put the network cable back."""
        network.set_cable(self.fleet, self.own, plugged=True)

    def add_interface(self, name: str, address: str) -> None:
        """Add an interface that leads nowhere, as Docker's bridge does."""
        network.add_bridge(self.fleet, self.own, name, address)

    def add_nic(self, name: str, address: str) -> None:
        """Add a second network card on the same switch."""
        network.plug_in(self.fleet, self.own, name, address)

    def set_password(self, password: str) -> None:
        """Give the user a password, and let it log in with it."""
        self.exec(
            ["chpasswd", "--crypt-method", "SHA512"], user="root", stdin=f"{USER}:{password}\n"
        )
        self.restart_sshd(PasswordAuthentication="yes")

    def forget_names(self) -> None:
        """Leave in /etc/hosts only its own name, at 127.0.1.1, as Debian's installer does."""
        (self.etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")

    def _boot(self) -> None:
        booted = [
            "/bin/sh",
            str(BOOT),
            self.name,
            str(self.folder),
            str(state_root()),
            str(CHECKOUT),
        ]
        within = ["nsenter", f"--net={network.path(self.space)}"]
        fresh = [
            "unshare",
            "--uts",
            "--mount",
            "--pid",
            "--ipc",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        with (self.folder / "boot.log").open("ab") as log:
            process = subprocess.Popen(
                [*within, *fresh, "tini", "--", *booted],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": PATH},
                start_new_session=True,  # Ctrl-C in a test run is not a power cut
            )
        CHILDREN.append(process)
        wait.until(
            lambda: self._booted(process), f"{self.name} does not boot", self.folder / "boot.log"
        )

    def _booted(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            reason = (self.folder / "boot.log").read_text().strip()
            raise RuntimeError(f"{self.name} died while it booted: {reason}")
        first = self._find(1)
        return first is not None and Path(f"/proc/{first}/root/run/booted").exists()

    def _find(self, inside: int) -> int | None:
        numbered = ((pid, processes.inside(pid)) for pid in self.pids())
        return next(
            (pid for pid, numbers in numbered if len(numbers) > 1 and numbers[-1] == inside), None
        )

    def _outside(self, inside: int) -> int:
        pid = self._find(inside)
        if pid is None:
            raise RuntimeError(f"{self.name} has no process {inside}: is its power off?")
        return pid
