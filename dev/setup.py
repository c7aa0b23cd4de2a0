"""Install what this machine lacks: `python3 -m dev.setup demo|test|ui|lock`; harmless if nothing.

Standard library only, as it runs before anything is installed; and it must at least start on an old
Python, to say so.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

OLDEST = (3, 11)
TASKS = ("demo", "test", "ui", "lock")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Raised when a signal asks us to end; whatever runs just now is ended first."""


def main(arguments: list[str]) -> int:
    """Do what the command line asks for, and say in one line what went wrong."""
    if sys.version_info < OLDEST:
        have = f"{sys.version_info[0]}.{sys.version_info[1]}"
        print(f"Python 3.11 or newer is needed, and {sys.executable} is {have}. Name one:")
        print("  make PYTHON=python3.12 demo")
        return 1
    if len(arguments) != 1 or arguments[0] not in TASKS:
        print(f"usage: python3 -m dev.setup {'|'.join(TASKS)}")
        return 2
    for number in SIGNALS:
        signal.signal(number, _stop)
    os.umask(0o022)  # the users of the test hosts must be able to read what root installs here
    try:
        prepare(arguments[0])
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except Stopped as stopped:
        number = stopped.args[0]
        print(f"stopped by {number.name}; what was begun is finished next time", file=sys.stderr)
        return 128 + int(number)
    return 0


def _stop(number: int, _: FrameType | None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(signal.Signals(number))


def prepare(task: str) -> None:
    """Install what a task needs."""
    from dev import environments, locks, system

    system.install(tools=task == "test", browser=task == "ui")
    if task == "lock":
        locks.write()
        return
    environments.make_own(tools=task in {"test", "ui"}, browser=task == "ui")
    environments.make_hosts("torch")
    if task != "test":
        return
    environments.make_hosts("trainers")
    environments.make_hosts("jax")
    environments.make_hosts("ray")
    environments.make_hosts("tensorflow", "--no-deps")  # tf-keras asks for a TensorFlow with CUDA
    for name in locks.MPI:
        environments.make_hosts(f"mpi-{name}")


def hosts_python(name: str = "torch") -> Path:
    """Return the Python of an environment that test hosts can run, as set up before.

    :raises RuntimeError: if it is not there
    """
    from dev import environments

    environment = environments.hosts_folder(name)
    if not environments.complete(environment):
        raise RuntimeError(f"{environment} is missing or half made: python3 -m dev.setup test")
    return environment / "bin/python"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
