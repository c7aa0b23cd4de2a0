"""What the hosts run: environments from locks, and what one of them compiles once."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from dev.environments import hosts_folder, make_hosts, run
from dev.setup import hosts_python

# Options of pip: tf-keras asks for a TensorFlow with CUDA.
OPTIONS = {"tensorflow": ("--no-deps",)}
EXTENSIONS = "torch_extensions"  # in an environment's folder
COMPILE = """
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder("ShareMemCommBuilder").load()
"""


def make(name: str) -> None:
    """Make an environment with all that its rows need.

    :raises RuntimeError: it cannot be made here; says why
    """
    make_hosts(name, *OPTIONS.get(name, ()))
    if name == "trainers":
        _compile(hosts_folder(name))


def path_of(python: str) -> str:
    """Return a PATH on which the programs of a Python's environment come first."""
    return f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin"


def _compile(folder: Path) -> None:
    """Compile what DeepSpeed would compile on each host at its first start, for minutes."""
    made, part = folder / EXTENSIONS, folder / f"{EXTENSIONS}.part"
    if made.exists():
        return
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not shutil.which("g++") or not header.exists():
        raise RuntimeError("DeepSpeed needs a compiler: apt-get install g++ python3-dev")
    print(f"compiling a part of DeepSpeed into {made}, once", flush=True)
    shutil.rmtree(part, ignore_errors=True)
    python = hosts_python("trainers")
    settings = [f"PATH={path_of(str(python))}", f"TORCH_EXTENSIONS_DIR={part}"]
    run(["env", *settings, "DS_ACCELERATOR=cpu", python, "-c", COMPILE])
    part.rename(made)
