"""What ended jobs leave in /dev/shm."""

from __future__ import annotations

import contextlib
import os

from .files import read_text
from .processes import process_table

SHM_NAMES = (
    "torch_*", "nccl-*", "psm_*", "sem.mp-*", "cuda.shm.*", "vader_segment.*", "sm_segment.*",
    "__KMP_REGISTERED_LIB_*", "mpich_*", "Intel_MPI_*",
)  # fmt: skip


def leave_no_shm(since: float) -> None:
    """Remove what frameworks of an ended job have left in /dev/shm, as killed ranks do."""
    from fnmatch import fnmatchcase

    left = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir("/dev/shm"):
            stat = entry.stat(follow_symlinks=False)
            known = any(fnmatchcase(entry.name, pattern) for pattern in SHM_NAMES)
            if known and stat.st_uid == os.geteuid() and stat.st_ctime >= since:
                left[entry.path] = entry.name
    used = "".join(map(open_shm, process_table())) if left else ""
    for path, name in left.items():
        if f"/{name}\n" not in used:
            with contextlib.suppress(OSError):
                os.unlink(path)


def open_shm(pid: int) -> str:
    """Return the lines that tell which segments a process has mapped or open."""
    lines = [line for line in read_text(f"/proc/{pid}/maps").splitlines() if "/dev/shm/" in line]
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                lines.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return "".join(line + "\n" for line in lines)
