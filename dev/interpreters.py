"""The Pythons that environments are made with: ours, and one that test hosts can run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OLDEST = (3, 11)
SYSTEM = Path("/usr/bin/python3")
ASK = (
    "import sys, sysconfig, importlib.util as u;"
    "print(sys.version_info[0], sys.version_info[1], u.find_spec('ensurepip') is not None,"
    " sysconfig.get_path('stdlib'))"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and what must be known to make an environment with it."""

    path: Path
    version: tuple[int, int]
    can_make: bool
    library: Path

    @property
    def package(self) -> str:
        """The Debian package that lets it make environments."""
        return f"python{self.version[0]}.{self.version[1]}-venv"

    def anybody_can_run_it(self) -> bool:
        """Tell whether other users than root get at its program and library."""
        return _open_to_all(self.path) and _open_to_all(self.library)


@cache
def inspect(path: Path) -> Interpreter | None:
    """Ask a Python about itself; None if there is none."""
    if not path.exists():
        return None
    done = subprocess.run([path, "-I", "-c", ASK], capture_output=True, text=True, check=True)
    major, minor, can_make, library = done.stdout.strip().split(" ", 3)
    return Interpreter(path, (int(major), int(minor)), can_make == "True", Path(library))


def own() -> Interpreter:
    """Return the Python at hand, or the one that its environment was made with."""
    found = inspect(
        Path(sys.base_prefix) / f"bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    )
    if found is None:
        raise RuntimeError(f"no Python in {sys.base_prefix}/bin, which {sys.executable} comes from")
    return found


@cache
def hosts() -> Interpreter:
    """Return the Python for the test hosts: of the system, as their users cannot look below /root.

    :raises RuntimeError: if none fits
    """
    if os.geteuid() != 0:
        return own()  # the hosts run as this user
    for candidate in (inspect(SYSTEM), own()):
        if candidate and candidate.version >= OLDEST and candidate.anybody_can_run_it():
            return candidate
    raise RuntimeError(
        f"test hosts need Python 3.11 or newer, readable by all users: {SYSTEM} is older or "
        f"missing, and {own().path} is closed to them. Name one: make PYTHON=/usr/bin/python3.12"
    )


def missing_packages() -> set[str]:
    """Return the Debian packages without which no environment can be made.

    :raises RuntimeError: if a Python that is not Debian's cannot make environments
    """
    lacking = [python for python in {own(), hosts()} if not python.can_make]
    for python in lacking:
        if not python.path.is_relative_to("/usr/bin"):
            raise RuntimeError(f"{python.path} has no ensurepip: run make with another PYTHON=…")
    return {python.package for python in lacking}


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in (real, *real.parents))
