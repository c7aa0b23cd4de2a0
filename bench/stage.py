"""The hosts that a row is measured on, the same for both sides."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dev.setup import hosts_python
from tests.fleet import Fleet
from tests.fleet.sshd import make_key

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS, SLOTS = 4, 2
RANKS = HOSTS * SLOTS
SCRIPT = "train.py"


@dataclass(frozen=True, slots=True)
class Stage:
    """Hosts that stand, and where the script of a row is.

    :param python: the interpreter of the ranks, on the hosts
    :param folder: the script's folder on this machine, which ours sends
    """

    fleet: Fleet
    python: Path
    folder: Path

    def place(self, script: str) -> None:
        """Write the script where ours sends it from, and where the peers expect it."""
        (self.folder / SCRIPT).write_text(script)
        for host in self.fleet.hosts:
            host.write_file(SCRIPT, script)

    def program(self, name: str) -> str:
        """Return the path of a program beside the ranks' interpreter."""
        return str(self.python.with_name(name))


@contextmanager
def stage(environment: str) -> Iterator[Stage]:
    """Make hosts that no row before has used, and the default connection to them.

    :param environment: the lock in `requirements/` that the ranks' interpreter is made from
    :raises MissingPrivilege: hosts of their own cannot be had here
    """
    python = hosts_python(environment)
    with (
        Fleet.up(HOSTS, kind="namespaces") as fleet,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
    ):
        _let_head_log_in(fleet, Path(folder))
        source = Path(folder, "source")
        source.mkdir()
        os.environ["AIRFLOW_CONN_GPU_FLEET_DEFAULT"] = fleet.connection_json(slots=SLOTS)
        yield Stage(fleet, python, source)


def _let_head_log_in(fleet: Fleet, folder: Path) -> None:
    """Give the first host a key to all others, which mpirun needs, and ours does not."""
    key = folder / "id_ed25519"
    public = make_key(key)
    for host in fleet.hosts:
        host.authorize(public)
    known = "".join(f"{host.name} {host.host_key}\n" for host in fleet.hosts)
    fleet.hosts[0].write_file(".ssh/id_ed25519", key.read_text(), mode=0o600)
    fleet.hosts[0].write_file(".ssh/known_hosts", known)
