"""What frameworks of ended jobs leave in /dev/shm and among temporary files, as killed ones do."""

from __future__ import annotations

import contextlib
import os

from .files import read_text
from .processes import process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SHM = "/dev/shm"
SHM_NAMES = (
    "torch_*", "nccl-*", "psm_*", "sem.mp-*", "cuda.shm.*", "vader_segment.*", "sm_segment.*",
    "__KMP_REGISTERED_LIB_*", "mpich_*", "Intel_MPI_*",
)  # fmt: skip
MPI_NAMES = ("ompi.*", "prte.*", "prted.*", "hydra_hwloc_xmlfile_*")
# What has such files without keeping them open. The kernel cuts names after 15 letters.
MPI_PROGRAMS = (
    "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "orted", "prterun", "prte", "prted",
    "hydra_pmi_proxy", "hydra_bstrap_pr",
)  # fmt: skip


LINKS = "/tmp/dt-ray-*"  # short paths to folders of nodes


def leave_nothing(since: float, folder: str) -> None:
    """Remove what frameworks of an ended job have left on this host, unless somebody uses it.

    :param since: when the job began, in seconds since the epoch: what is older is not its own
    :param folder: of the job's node
    """
    _remove_links(folder)
    temporary = os.environ.get("TMPDIR") or "/tmp"
    segments, sessions = [*_left(SHM, SHM_NAMES, since)], [*_left(temporary, MPI_NAMES, since)]
    if not (segments or sessions):
        return
    running = process_table()
    used = "".join(map(open_shm, running))
    for path in segments:
        if f"/{os.path.basename(path)}\n" not in used:
            with contextlib.suppress(OSError):
                os.unlink(path)
    if sessions and not any(map(_is_own_mpi, running)):
        _remove(sessions)


def _remove_links(folder: str) -> None:
    """Remove the short paths that lead into a node's folder."""
    import glob

    for link in glob.glob(LINKS):
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(folder + os.sep):
                os.unlink(link)


def open_shm(pid: int) -> str:
    """Return the lines that tell which segments a process has mapped or open."""
    lines = [line for line in read_text(f"/proc/{pid}/maps").splitlines() if f"{SHM}/" in line]
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                lines.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return "".join(line + "\n" for line in lines)


def _left(folder: str, names: tuple[str, ...], since: float) -> Iterator[str]:
    """Return what this user has made in a folder since then, by names that frameworks give."""
    from fnmatch import fnmatchcase

    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if any(fnmatchcase(entry.name, pattern) for pattern in names):
                stat = entry.stat(follow_symlinks=False)
                if stat.st_uid == os.geteuid() and stat.st_ctime >= since:
                    yield entry.path


def _is_own_mpi(pid: int) -> bool:
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            return read_text(f"/proc/{pid}/comm").strip() in MPI_PROGRAMS
    return False


def _remove(paths: list[str]) -> None:
    import shutil

    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
