"""The MPI of this host: which mpirun it has, and what its ranks are made for."""

from __future__ import annotations

import os
import re

from .errors import problem
from .programs import output_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


# What each says of itself: `mpirun --version`, and MPI_Get_library_version.
SIGNS = (
    ("intelmpi", re.compile(r"Intel\(R\) MPI Library.*?(\d{4}(?:\.\d+)*)")),
    ("openmpi", re.compile(r"(?:Open MPI\)?|OpenRTE\)?) v?(\d+(?:\.\d+)+)")),
    ("mpich", re.compile(r"(?:HYDRA build|MPICH|MVAPICH\S*).*?Version:\s*(\d\S*)", re.DOTALL)),
)
TITLES = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI"}
# Those of MPICH's family understand each other's ranks, as their ABI is one.
UNDERSTOOD = {
    "openmpi": ("openmpi",),
    "mpich": ("mpich", "intelmpi"),
    "intelmpi": ("intelmpi", "mpich"),
}
MARK = "the library says: "
LIBRARY = f"""
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print("\\n{MARK}" + MPI.Get_library_version())
"""
HYDRA = "mpiexec.hydra"  # what Intel's mpirun looks for on the PATH, and calls


def find_mpirun(wanted: Json, env: dict[str, str]) -> Json:
    """Return the path, the family and the version of mpirun, or why there is none to use.

    :param wanted: its ``program``, if the user named one; the ``python`` of the ranks, beside which
        it is looked for first; and the user's ``path``
    """
    path = wanted.get("path") or env.get("PATH", os.defpath)
    program = located(wanted, path)
    if not program:
        name = wanted.get("program") or "mpirun"
        return {"why": f"there is no {name} beside {wanted.get('python')}, nor on the PATH {path}"}
    folder = os.path.dirname(program)
    if os.path.exists(os.path.join(folder, HYDRA)) and is_script(program):
        program = os.path.join(folder, HYDRA)
    told = output_of([program, "--version"], {**env, "PATH": folder + os.pathsep + path})
    family, version = told_by(told or "")
    if family:
        return {"program": program, "family": family, "version": version}
    said = " ".join((told or "").split())[:200] or "nothing, or failed"
    return {"why": f"{program} --version says {said}"}


def located(wanted: Json, path: str) -> str | None:
    """Return the path of mpirun."""
    import shutil

    name, python = wanted.get("program") or "mpirun", str(wanted.get("python") or "")
    beside = os.path.join(os.path.dirname(python), name)
    if os.path.isabs(beside) and shutil.which(beside):
        return beside
    return shutil.which(os.path.expanduser(name), path=path)


def is_script(program: str) -> bool:
    """Tell whether a program is text for an interpreter."""
    with open(program, "rb") as file:
        return file.read(2) == b"#!"


def told_by(text: str) -> tuple[str, str]:
    """Return the family and the version of which an MPI tells, empty if it is none we know."""
    for family, sign in SIGNS:
        match = sign.search(text)
        if match:
            return family, match.group(1).rstrip(",")
    return "", ""


def mismatch(python: str | None, mpirun: Json, env: dict[str, str]) -> Json | None:
    """Return the finding that mpi4py is made for another MPI than mpirun.

    Each rank would be alone in a group of its own, and all of them would succeed.
    """
    told = output_of([python, "-c", LIBRARY], env) if python else None
    family, version = told_by((told or "").rpartition(MARK)[2])
    if not family or family in UNDERSTOOD[mpirun["family"]]:
        return None
    ranks, launcher = f"{TITLES[family]} {version}", TITLES[mpirun["family"]]
    why = f"{python} loads {ranks}, and {mpirun['program']} is {launcher}'s: ranks would be alone"
    do = f"name the mpirun of {TITLES[family]} with mpirun=, or install mpi4py for {launcher}"
    return problem("mpi4py does not fit mpirun", why, do)
