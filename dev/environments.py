"""Virtual environments from locks: ours in the checkout, and those that test hosts run."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from dev import interpreters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dev.interpreters import Interpreter

CHECKOUT = Path(__file__).resolve().parents[1]
OWN = CHECKOUT / ".venv"
LOCKS = CHECKOUT / "requirements"


def make_own(*, tools: bool, browser: bool = False) -> None:
    """Make `.venv`: Airflow, its developers' tools if asked for, and this project, editable.

    :param browser: also what drives a browser
    """
    airflow, dev, browsers = (LOCKS / f"{name}.txt" for name in ("airflow", "dev", "browser"))
    python = interpreters.own()
    with _alone(airflow):
        if _stale(OWN, "airflow", base := _fingerprint(python, airflow)):
            print(f"installing Airflow into {OWN}, once", flush=True)
            _create(OWN, python)
            _pip(OWN, "--no-deps", "--requirement", airflow)
            _mark(OWN, "airflow", base)
        if tools and _stale(OWN, "dev", text := _fingerprint(python, dev)):
            print(f"installing tools into {OWN}, once", flush=True)
            _pip(OWN, "--no-deps", "--requirement", dev)
            _mark(OWN, "dev", text)
        if browser and _stale(OWN, "browser", text := _fingerprint(python, browsers)):
            _pip(OWN, "--no-deps", "--requirement", browsers)
            _mark(OWN, "browser", text)
        if _stale(OWN, "project", text := _fingerprint(python, CHECKOUT / "pyproject.toml")):
            _pip(OWN, "--no-deps", "--no-build-isolation", "--editable", CHECKOUT)
            _mark(OWN, "project", text)


def make_hosts(name: str, *options: str) -> None:
    """Make the environment of a lock where the users of test hosts can read it.

    :param options: of `pip install`
    """
    folder, lock = hosts_folder(name), LOCKS / f"{name}.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        if complete(folder):
            return
        print(f"installing {name} for the test hosts into {folder}, once", flush=True)
        _create(folder, interpreters.hosts())
        _pip(folder, *options, "--requirement", lock)
        # With dependencies, also after --no-deps: a build of torch for GPUs needs more than the
        # lock names.
        for pin in lock.read_text().splitlines():
            if pin.startswith("torch=="):
                _pip(folder, pin)
        _check_compiled(folder)
        _mark(folder, "lock", lock.read_text())


def hosts_folder(name: str) -> Path:
    """Return where the environment of a lock is; another lock or Python makes another one."""
    tag = _fingerprint(interpreters.hosts(), LOCKS / f"{name}.txt")[:12]
    return _hosts_root() / f"{name}-{tag}"


def complete(folder: Path) -> bool:
    """Tell whether a test hosts' environment was made to its end."""
    return _mark_file(folder, "lock").exists()


def _hosts_root() -> Path:
    if os.geteuid() == 0:
        return Path("/opt/distributed-training/envs")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "distributed-training/envs"


def _create(folder: Path, python: Interpreter) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    run([python.path, "-m", "venv", folder])


def _pip(folder: Path, *arguments: str | Path) -> None:
    quiet = ["--disable-pip-version-check", "--no-input", "--root-user-action", "ignore"]
    run([folder / "bin/python", "-m", "pip", "install", *quiet, *arguments])


def run(command: list[str | Path]) -> str:
    """Run a program and return its output; what it complains of matters only if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise RuntimeError(f"{said}\nThat was: {' '.join(map(str, command))}")
    return done.stdout


def _check_compiled(folder: Path) -> None:
    # Users of the hosts cannot write byte code, and without it torch takes 25 s to start, not 7.
    if next(folder.glob("lib/*/site-packages/*/__pycache__/*.pyc"), None) is None:
        raise RuntimeError(
            f"pip left no byte code in {folder}: allow it to compile (PIP_NO_COMPILE?)"
        )


def _fingerprint(python: Interpreter, *files: Path) -> str:
    content = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(f"{python.path} {python.version} ".encode() + content).hexdigest()


def _mark_file(folder: Path, step: str) -> Path:
    return folder / f".complete-{step}"


def _mark(folder: Path, step: str, content: str) -> None:
    """Record, last of all, what a step was made from."""
    _mark_file(folder, step).write_text(content)


def _stale(folder: Path, step: str, content: str) -> bool:
    try:
        return _mark_file(folder, step).read_text() != content
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let nobody else make the same at the same time."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
