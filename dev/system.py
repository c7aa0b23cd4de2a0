"""The programs that the demo and the tests take from the operating system."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from dev import interpreters

SEARCHED = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
# program: its Debian package. Everybody needs the first, hosts in namespaces the second.
SSH = {"sshd": "openssh-server", "ssh-keygen": "openssh-client"}
NAMESPACES = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "tini": "tini",
    "chpasswd": "passwd",
}
# Its own name: `mpirun` may be that of another MPI, and the tests want Debian's, too.
TOOLS = {"git": "git", "mpirun.openmpi": "openmpi-bin", "redis-server": "redis-server"}
BROWSER = {"chromium": "chromium"}
FAKETIME = ("lib*/faketime/libfaketimeMT.so.1", "lib/*/faketime/libfaketimeMT.so.1")
POSTGRES = "lib/postgresql/*/bin/postgres"


def install(*, tools: bool, browser: bool = False) -> None:
    """Install the Debian packages that are missing.

    :param browser: also what the tests of the web page look with
    :raises RuntimeError: if they cannot be installed; it names all of them and the one command
    """
    packages = missing(tools=tools, browser=browser)
    if not packages:
        return
    command = f"apt-get install --yes {' '.join(packages)}"
    if os.geteuid() != 0:
        raise RuntimeError(f"These are missing: {', '.join(packages)}. Run\n  sudo {command}")
    if shutil.which("apt-get") is None:
        raise RuntimeError(f"These are missing (by their names in Debian): {', '.join(packages)}")
    print(f"installing {', '.join(packages)}", flush=True)
    if _apt_get("install", *packages) is None:
        return
    _apt_get("update")  # the lists of a fresh machine are old or absent
    if failure := _apt_get("install", *packages):
        raise RuntimeError(f"{failure}\nThat was: {command}")


def missing(*, tools: bool, browser: bool = False) -> list[str]:
    """Return the Debian packages of all that is missing."""
    root = os.geteuid() == 0
    programs = {**SSH, **(NAMESPACES if root else {}), **(TOOLS if tools else {})}
    programs |= BROWSER if browser else {}
    packages = {
        package for name, package in programs.items() if shutil.which(name, path=SEARCHED) is None
    }
    if root and tools and not any(list(Path("/usr").glob(pattern)) for pattern in FAKETIME):
        packages.add("libfaketime")
    if tools and postgres() is None:
        packages.add("postgresql")
    return sorted(packages | interpreters.missing_packages())


def postgres() -> Path | None:
    """Return the folder of the newest Postgres' programs, which Debian keeps out of PATH."""
    found = [path.parent for path in Path("/usr").glob(POSTGRES)]
    return max(found, key=lambda folder: float(folder.parent.name), default=None)


def _apt_get(verb: str, *packages: str) -> str | None:
    """Run apt-get; return what it said if it failed."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", verb, "--yes", "--quiet", *packages]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else None
