"""A Postgres and a Redis of our own for an Airflow as teams run it, from Debian's packages.

They listen at sockets in one folder, at no port, and are none of the services of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from dev.programs import Program, ProgramFailed
from dev.rest import until
from dev.system import SEARCHED, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "postgres"  # of the package, and of the database: the server refuses to be run by root
# Nothing here outlives the tests, so that nothing needs to be safe on a disk.
CAREFREE = ["fsync=off", "full_page_writes=off", "synchronous_commit=off"]
QUIET = ["--port", "0", "--save", "", "--appendonly", "no"]
ENVIRONMENT = {"PATH": SEARCHED, "LC_ALL": "C.UTF-8"}


@contextmanager
def database() -> Iterator[dict[str, str]]:
    """Run Postgres for as long as the block lasts; yield the variables by which Airflow uses it."""
    with _folder() as folder, _running(*_postgres(folder)):
        address = f"postgresql+psycopg2://{USER}@/{USER}?host={folder}"
        yield {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": address}


@contextmanager
def teams_services() -> Iterator[dict[str, str]]:
    """Run both for as long as the block lasts; yield the variables by which Airflow uses them."""
    with database() as variables, _folder() as folder, _running(*_redis(folder)):
        yield {
            **variables,
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": f"redis+socket://{folder}/redis.sock",
        }


@contextmanager
def _running(program: Program, ready: list[str]) -> Iterator[None]:
    """Run a server for as long as the block lasts, once it is ready."""
    program.start()
    try:
        _wait_for(program, ready)
        yield
    finally:
        program.end(grace=10)


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder that the server's user owns; sweep away those of runs that were killed.

    Not a test's own, as other users than root cannot look below that; its path must be short, too.
    """
    name = f"airflow-services-{os.geteuid()}-"
    for old in Path(tempfile.gettempdir()).glob(f"{name}*"):
        if not psutil.pid_exists(int(old.name.split("-")[3])):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}{os.getpid()}-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _redis(folder: Path) -> tuple[Program, list[str]]:
    """Return the server, and what succeeds when it is ready."""
    socket = ["--unixsocket", f"{folder}/redis.sock", "--dir", str(folder)]
    program = Program(
        "redis-server", ["redis-server", *QUIET, *socket], folder / "redis.log", ENVIRONMENT
    )
    return program, ["redis-cli", "-e", "-s", f"{folder}/redis.sock", "ping"]


def _postgres(folder: Path) -> tuple[Program, list[str]]:
    """Make a cluster; return its server, and what succeeds when that is ready."""
    data, log = f"{folder}/data", folder / "postgres.log"
    make = [*_command("initdb"), "--pgdata", data, "--username", USER, "--encoding", "UTF8"]
    make += ["--auth", "trust", "--no-sync"]  # nobody else gets at the folder of its socket
    Program("initdb", make, log, ENVIRONMENT).run(timeout=120)
    settings = [*CAREFREE, "listen_addresses=", f"unix_socket_directories={folder}"]
    options = [part for setting in settings for part in ("-c", setting)]
    program = Program("postgres", [*_command("postgres"), "-D", data, *options], log, ENVIRONMENT)
    return program, [*_command("pg_isready"), "--host", str(folder)]


def _command(name: str) -> list[str]:
    """Return what runs a program of Postgres as a user that it accepts."""
    folder = postgres()
    if folder is None:
        raise ProgramFailed(f"{name} of Postgres is missing: python3 -m dev.setup test")
    user = ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", "--"]
    return [*(user if os.geteuid() == 0 else ()), str(folder / name)]


def _wait_for(program: Program, ready: list[str]) -> None:
    for _ in until(60, f"{program.name} does not answer; {program.tail()}", pause=0.1):
        program.check()
        asked = subprocess.run(ready, env=ENVIRONMENT, capture_output=True, check=False)
        if asked.returncode == 0:
            return
