"""GPUs, and who uses them."""

from __future__ import annotations

import contextlib
import os

from .errors import problem
from .processes import command_of, process_user
from .programs import output_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from .records import Json


def nvidia_smi(query: str) -> list[list[str]]:
    """Return the rows that nvidia-smi answers, none where it is absent or fails."""
    command = question(query)
    return rows_of(output_of(command) if command else None, query)


def question(query: str) -> list[str] | None:
    """Return what asks nvidia-smi, where there is one."""
    import shutil

    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", "/usr/local/cuda/bin"])
    program = shutil.which("nvidia-smi", path=path)
    return [program, query, "--format=csv,noheader,nounits"] if program else None


def rows_of(told: str | None, query: str) -> list[list[str]]:
    """Return the rows of an answer."""
    rows = [[cell.strip() for cell in line.split(",")] for line in (told or "").splitlines()]
    return [row for row in rows if len(row) > query.count(",")]  # else a remark, not a row


class GpuUse:
    """How busy each GPU was at the last look: the driver answers from one to the next."""

    QUERY = "--query-gpu=uuid,utilization.gpu,memory.used,memory.total"

    def __init__(self) -> None:
        self._command = question(self.QUERY)
        self._asked = self._ask()

    def look(self) -> Json:
        """Return the share of time, bytes in use and all bytes of each GPU, by UUID.

        There are none where nvidia-smi is absent, or has not answered yet.
        """
        if self._asked is None or self._asked.poll() is None:
            return {}
        told = self._asked.communicate()[0].decode("utf-8", "replace")
        rows = rows_of(told, self.QUERY)
        self._asked = self._ask()
        return {uuid: row for uuid, *cells in rows if (row := gpu_row(cells))}

    def _ask(self) -> subprocess.Popen[bytes] | None:
        import subprocess

        nobody = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            if self._command:
                return subprocess.Popen(
                    self._command, stdin=nobody, stdout=subprocess.PIPE, stderr=nobody
                )
        return None


def gpu_row(cells: list[str]) -> list[float] | None:
    """Return the numbers of a GPU that knows them: a part of one does not know how busy it is."""
    busy, used, total = cells[:3]
    if not (used.isdigit() and total.isdigit()):
        return None
    return [int(busy) / 100 if busy.isdigit() else 0.0, int(used) << 20, int(total) << 20]


def gpus() -> list[Json]:
    """Return the GPUs of the host."""
    found = []
    for uuid, index, *name, memory in nvidia_smi("--query-gpu=uuid,index,name,memory.total"):
        size = int(memory) if memory.isdigit() else 0
        found.append({"uuid": uuid, "index": int(index), "name": ",".join(name), "memory_mb": size})
    return found


def gpu_processes(uuids: set[str]) -> list[int]:
    """Return the processes that compute on any of these GPUs."""
    rows = nvidia_smi("--query-compute-apps=gpu_uuid,pid") if uuids else []
    return sorted(int(pid) for uuid, pid, *_ in rows if uuid in uuids and pid.isdigit())


def gpu_memory_held(uuids: set[str]) -> bool:
    """Tell whether any of these GPUs has more memory in use than a driver or a display takes."""
    rows = nvidia_smi("--query-gpu=uuid,memory.used,memory.total") if uuids else []
    return any(
        int(used) > max(1024, int(total) // 20)
        for uuid, used, total, *_ in rows
        if uuid in uuids and used.isdigit() and total.isdigit()
    )


def in_use(strangers: Sequence[int]) -> Json:
    """Return the finding that processes of nobody's job are on GPUs."""
    told = ", ".join(f"{pid} of {process_user(pid)} ({command_of(pid)})" for pid in strangers)
    do = "end them, or leave these GPUs out with gpus= in the fleet"
    return problem("a wanted GPU is in use", f"by processes of no job: {told}", do)


def gpu_states() -> list[str]:
    """Return how busy each GPU is: one that waits for others is, one that is waited for is not."""
    query = "--query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu,pstate"
    return [
        f"GPU {index}: {busy} % busy, {used} of {total} MiB, {heat} C, {state}"
        for index, busy, used, total, heat, state, *_ in nvidia_smi(query)
    ]
