"""What the hosts run: environments from locks, and what is compiled or fetched for them, once."""

from __future__ import annotations

import shutil
import sysconfig
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from dev.environments import hosts_folder, make_hosts, run
from dev.locks import OVERRIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from frameworks.row import Row

# Options of pip: tf-keras asks for a TensorFlow with CUDA, the others for an older torch.
OPTIONS = dict.fromkeys(("tensorflow", *OVERRIDDEN), ("--no-deps",))
# Folders in an environment.
EXTENSIONS = "torch_extensions"
HOROVOD = "horovod"
MPI4PY_TESTS = "mpi4py_tests"
OPERATORS = "torchvision_operators"

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
# Its wheels have no tests. The version is that of the locks.
MPI4PY_RELEASE = "mpi4py==4.1.2"
MPI4PY_SHA256 = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02"

DECLARE = """

if not _has_ops():
    _names = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _names.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def make(row: Row) -> None:
    """Make what a row's hosts run.

    :raises RuntimeError: it cannot be made here; says why
    """
    make_hosts(row.environment, *OPTIONS.get(row.environment, ()))
    for word in (row.family, row.name):
        if word in ADDED:
            name, add_to = ADDED[word]
            _once(hosts_folder(row.environment), name, add_to)


def path_of(python: str) -> str:
    """Return a PATH on which the programs of a Python's environment come first."""
    return f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin"


def _once(folder: Path, name: str, add_to: Callable[[Path, Path], None]) -> None:
    made, part = folder / name, folder / f"{name}.part"
    if made.exists():
        return
    print(f"making {made}, once", flush=True)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    add_to(folder, part)
    part.rename(made)


def _need_compiler() -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists() or not all(map(shutil.which, ("g++", "cmake"))):
        raise RuntimeError("this has to be compiled: apt-get install g++ cmake python3-dev")
    print("compiling it takes minutes", flush=True)


def _extensions(folder: Path, part: Path) -> None:
    """Compile what DeepSpeed would compile on each host at its first start."""
    _need_compiler()
    python = folder / "bin/python"
    settings = [f"PATH={path_of(str(python))}", f"TORCH_EXTENSIONS_DIR={part}"]
    run(["env", *settings, "DS_ACCELERATOR=cpu", python, "-c", COMPILE])


def _horovod(folder: Path, part: Path) -> None:
    _need_compiler()
    python, compiler = folder / "bin/python", part / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    settings = [f"PATH={path_of(str(python))}", f"CXX={compiler}", *HOROVOD_SETTINGS]
    install = ["install", "--no-build-isolation", "--no-deps", "--no-binary", ":all:"]
    run(["env", *settings, python, "-m", "pip", *install, "--target", part, HOROVOD_RELEASE])


def _mpi4py_tests(folder: Path, part: Path) -> None:
    """Fetch the tests that its source has beside the library."""
    wanted = part / "wanted.txt"
    wanted.write_text(f"{MPI4PY_RELEASE} --hash=sha256:{MPI4PY_SHA256}\n")
    fetch: list[str | Path] = ["download", "--no-deps", "--no-binary", "mpi4py", "--dest", part]
    pip: list[str | Path] = [folder / "bin/python", "-m", "pip"]
    run([*pip, *fetch, "--requirement", wanted])
    (source,) = part.glob("mpi4py-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(part, filter="data")
    (tests,) = part.glob("mpi4py-*/test")
    for file in tests.iterdir():
        file.rename(part / file.name)


def _operators(folder: Path, part: Path) -> None:
    """Let torchvision be imported: its build is for CUDA, and a torch without refuses its library.

    It then misses the names of its operators, which nobody here calls.
    """
    (module,) = folder.glob("lib/*/site-packages/torchvision/extension.py")
    if DECLARE not in module.read_text():
        module.write_text(module.read_text() + DECLARE)
    run([folder / "bin/python", "-m", "compileall", "-q", module])
    run([folder / "bin/python", "-c", "import torchvision"])
    (part / "extension.py").write_text(DECLARE)


# What the rows of a family, or of a name, need beside their environment: the folder, and how it is
# made.
ADDED = {
    "deepspeed": (EXTENSIONS, _extensions),
    "horovod": (HOROVOD, _horovod),
    "mpi4py's own tests": (MPI4PY_TESTS, _mpi4py_tests),
    **dict.fromkeys(("composer", "streaming", "LLM Foundry", "Unsloth"), (OPERATORS, _operators)),
}
