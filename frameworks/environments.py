"""What the hosts run: environments from locks, and what is compiled in them, once."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from dev.environments import hosts_folder, make_hosts, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from frameworks.row import Row

# Options of pip: tf-keras asks for a TensorFlow with CUDA.
OPTIONS = {"tensorflow": ("--no-deps",)}
# Folders in an environment.
EXTENSIONS = "torch_extensions"
HOROVOD = "horovod"

COMPILE = """
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder("ShareMemCommBuilder").load()
"""
# Its newest release asks for C++17, torch's headers for C++20: the last one that is said counts.
COMPILER = '#!/bin/sh\nexec g++ "$@" -std=gnu++20 -fpermissive -w\n'
HOROVOD_RELEASE = "horovod==0.28.1"
HOROVOD_SETTINGS = (
    "HOROVOD_WITH_PYTORCH=1", "HOROVOD_WITHOUT_TENSORFLOW=1", "HOROVOD_WITHOUT_MXNET=1",
    "HOROVOD_WITH_MPI=1", "HOROVOD_WITH_GLOO=1", "HOROVOD_CPU_OPERATIONS=MPI",
)  # fmt: skip


def make(row: Row) -> None:
    """Make what a row's hosts run.

    :raises RuntimeError: it cannot be made here; says why
    """
    make_hosts(row.environment, *OPTIONS.get(row.environment, ()))
    if row.family in COMPILED:
        name, compile_into = COMPILED[row.family]
        _once(hosts_folder(row.environment), name, compile_into)


def path_of(python: str) -> str:
    """Return a PATH on which the programs of a Python's environment come first."""
    return f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin"


def _once(folder: Path, name: str, compile_into: Callable[[Path, Path], None]) -> None:
    made, part = folder / name, folder / f"{name}.part"
    if made.exists():
        return
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists() or not all(map(shutil.which, ("g++", "cmake"))):
        raise RuntimeError(f"{made} has to be compiled: apt-get install g++ cmake python3-dev")
    print(f"compiling {made}, once; this takes minutes", flush=True)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    compile_into(folder, part)
    part.rename(made)


def _extensions(folder: Path, part: Path) -> None:
    """Compile what DeepSpeed would compile on each host at its first start."""
    python = folder / "bin/python"
    settings = [f"PATH={path_of(str(python))}", f"TORCH_EXTENSIONS_DIR={part}"]
    run(["env", *settings, "DS_ACCELERATOR=cpu", python, "-c", COMPILE])


def _horovod(folder: Path, part: Path) -> None:
    python, compiler = folder / "bin/python", part / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    settings = [f"PATH={path_of(str(python))}", f"CXX={compiler}", *HOROVOD_SETTINGS]
    install = ["install", "--no-build-isolation", "--no-deps", "--no-binary", ":all:"]
    run(["env", *settings, python, "-m", "pip", *install, "--target", part, HOROVOD_RELEASE])


# What is compiled for the rows of a family: the folder, and how.
COMPILED = {"deepspeed": (EXTENSIONS, _extensions), "horovod": (HOROVOD, _horovod)}
