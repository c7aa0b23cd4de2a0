"""The folders of a host that are its own: /etc with its users, names and keys, and the homes."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fleet import sshd

if TYPE_CHECKING:
    from tests.fleet.record import HostRecord, Record

USER, USER_ID = "trainer", 7700
# "*" lets no password fit; with "!" the account were locked, and sshd would refuse keys as well.
ACCOUNT = {
    "passwd": f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash",
    "shadow": f"{USER}:*:20000:0:99999:7:::",
    "group": f"{USER}:x:{USER_ID}:",
    "subuid": f"{USER}:7700000:65536",
    "subgid": f"{USER}:7700000:65536",
}


def furnish(fleet: Record, host: HostRecord, public_key: str) -> None:
    """Make the folders of a host, on the model of this machine, and let a key log in."""
    folder = fleet.folder / host.name
    for path in ("home", "root", "var/log"):
        (folder / path).mkdir(parents=True)
    (folder / "root").chmod(0o700)
    (folder / "var/tmp").mkdir()
    (folder / "var/tmp").chmod(0o1777)
    _make_etc(fleet, host, folder / "etc")
    _make_home(folder / "home" / USER, USER_ID, public_key)
    _make_home(folder / "root", 0, public_key)


def _make_etc(fleet: Record, host: HostRecord, etc: Path) -> None:
    # cp keeps owners, which shutil does not.
    subprocess.run(["cp", "-a", "/etc", str(etc)], check=True)
    for name, line in ACCOUNT.items():
        _add_account(etc / name, line)
    names = "".join(f"{other.address} {other.name}\n" for other in fleet.hosts)
    _replace(etc / "hosts", f"127.0.0.1 localhost\n{names}")
    _replace(etc / "hostname", f"{host.name}\n")
    _replace(etc / "machine-id", f"{uuid.uuid4().hex}\n")
    _replace(etc / "resolv.conf", "")  # a dead name server costs torchrun a minute
    for key in (etc / "ssh").glob("ssh_host_*"):
        key.unlink()
    host.host_key = sshd.make_key(etc / "ssh/ssh_host_ed25519_key")


def _add_account(path: Path, line: str) -> None:
    lines = path.read_text().splitlines() if path.exists() else []
    others = [other for other in lines if not other.startswith(f"{USER}:")]
    path.write_text("\n".join([*others, line, ""]))


def _replace(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # it may be a link to what the host does not have
    path.write_text(text)
    path.chmod(0o644)


def _make_home(home: Path, owner: int, public_key: str) -> None:
    skeleton = Path("/etc/skel")
    if skeleton.is_dir():
        shutil.copytree(skeleton, home, symlinks=True, dirs_exist_ok=True)
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".ssh/authorized_keys").write_text(f"{public_key}\n")
    (home / ".ssh/authorized_keys").chmod(0o600)
    for path in [home, *home.rglob("*")]:
        os.chown(path, owner, owner, follow_symlinks=False)
