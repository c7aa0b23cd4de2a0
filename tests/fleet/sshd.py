"""OpenSSH's server as the hosts run it: keys, configuration, and waiting until it greets."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fleet import wait

if TYPE_CHECKING:
    from collections.abc import Mapping

# Only what a test host needs; everything else is OpenSSH's default, as on hosts in the field.
DEFAULTS = {
    "UsePAM": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "PrintMotd": "no",
    "PrintLastLog": "no",
    "LogLevel": "VERBOSE",
}
# Each distribution has it elsewhere. Not internal-sftp: this one is run through the user's shell.
SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)
FAKETIME = "/usr/$LIB/faketime/libfaketimeMT.so.1"


def program() -> str:
    """Return the path of sshd, which it insists on being called by."""
    path = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin")
    if path is None:
        raise FileNotFoundError("sshd is missing: apt-get install openssh-server")
    return path


def make_key(path: Path) -> str:
    """Make an ed25519 key pair at a path and return its public half without the comment."""
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(make, check=True, capture_output=True)
    return path.with_suffix(".pub").read_text().strip()


def config(options: Mapping[str, str]) -> str:
    """Return the text of an sshd_config; the first value of an option wins, so ours come last."""
    sftp = next((path for path in SFTP_SERVERS if Path(path).exists()), "internal-sftp")
    merged = {**DEFAULTS, "Subsystem": f"sftp {sftp}", **options}
    return "".join(f"{name} {value}\n" for name, value in merged.items())


def wrong_clock(seconds: float) -> str:
    """Return the SetEnv of sessions whose clock is wrong; monotonic clocks must keep their pace."""
    if not seconds:
        return ""
    return f"LD_PRELOAD={FAKETIME} FAKETIME={seconds:+g} FAKETIME_DONT_FAKE_MONOTONIC=1"


def wait_for_greeting(address: str, port: int, log: Path) -> None:
    """Return once an SSH server greets at an address; its log tells why if it does not."""
    wait.until(lambda: _greets(address, port), f"sshd does not answer at {address}:{port}", log)


def _greets(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
