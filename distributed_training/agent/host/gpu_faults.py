"""What befalls GPUs under a job."""

from __future__ import annotations

import re

from .gpus import nvidia_smi
from .kernel import XID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .kernel import KernelLog
    from .records import Json


# Of https://docs.nvidia.com/deploy/xid-errors: others (13, 31, 43, …) are mostly of programs.
HARDWARE_XIDS = {48, 61, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140}


def gpu_health() -> dict[str, dict[str, str]]:
    """Return the place and the errors of each GPU, as far as its driver knows of them."""
    health: dict[str, dict[str, str]] = {}
    for query, names in (
        ("--query-gpu=uuid,pci.bus_id", ("at",)),
        ("--query-gpu=uuid,ecc.errors.uncorrected.volatile.total", ("uncorrected ECC errors",)),
        ("--query-gpu=uuid,retired_pages.pending", ("page retirement pending",)),
        (
            "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure",
            ("row remapping pending", "row remapping failed"),
        ),
    ):
        for uuid, *cells in nvidia_smi(query):
            told = dict(zip(names, cells))
            health.setdefault(uuid, {}).update(told)
        if not health:  # absent, or it hangs: once is enough
            break
    return health


def gpu_faults(gpus: Sequence[str], before: Json, log: KernelLog) -> list[Json]:
    """Return what befell GPUs since the job began: Xid messages, new errors, disappearance."""
    now = gpu_health()
    found: list[Json] = []
    places = {bus_place((before.get(gpu) or now.get(gpu) or {}).get("at", "")): gpu for gpu in gpus}
    for line in log.read():
        match = XID.search(line)
        if match and bus_place(match.group(1)) in places:
            gpu = places[bus_place(match.group(1))]
            found.append({"gpu": gpu, "m": line, "hardware": int(match.group(2)) in HARDWARE_XIDS})
    for gpu in filter(before.get, gpus):
        new = [
            f"{name}: {value}"
            for name, value in now.get(gpu, {}).items()
            if before[gpu].get(name, value) != value
        ]
        gone = [] if gpu in now else ["nvidia-smi does not list it any more"]
        found += [{"gpu": gpu, "m": f"{gpu}: {each}", "hardware": True} for each in new + gone]
    return found


def bus_place(text: str) -> tuple[int, ...]:
    """Return domain, bus and device of a PCI address, however many digits are written."""
    return tuple(int(part, 16) for part in re.findall("[0-9A-Fa-f]+", text))[:3]
