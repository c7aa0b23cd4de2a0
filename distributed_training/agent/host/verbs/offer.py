"""What this host has."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

from ..checkpoints import newest_checkpoint
from ..facts import boot_id, user_name
from ..files import disk_free, read_text
from ..folders import root_of, source_path
from ..gpus import gpus
from ..infiniband import infiniband
from ..mpi import find_mpirun
from ..network import interfaces
from ..ports import free_ports
from ..slots import busy_slots
from ..tending import note_restart
from ..tickets import Ticket, claimed_slots
from ..withheld import withheld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def offer(request: Json, call: Call) -> Json:
    """Tell what this host has."""
    root = root_of(request)
    sha = request.get("source")
    saved = request.get("checkpoint_dir")
    wanted = request.get("mpirun")
    ticket = Ticket.of(request)
    if ticket and request.get("slots"):
        ticket.leave()
    elif ticket and request.get("slots") is not None:
        ticket.withdraw()
    note_restart(root)
    return {
        "ok": True,
        **fitness(root),
        **withheld(),
        "machine_id": read_text("/etc/machine-id").strip() or socket.gethostname(),
        "boot_id": boot_id(),
        "hostname": socket.gethostname(),
        "user": user_name(),
        "uid": os.getuid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "home": os.path.expanduser("~"),
        "root": root,
        "ssh_address": (os.environ.get("SSH_CONNECTION", "").split() + [None] * 3)[2],
        "cpus": len(os.sched_getaffinity(0)),
        "clock": time.time(),
        "gpus": gpus(),
        "busy": {**claimed_slots(ticket), **busy_slots()},
        "ports": free_ports(64),
        "addresses": interfaces(),
        "has_source": bool(sha) and keep_source(source_path(root, str(sha))),
        **(newest_checkpoint(saved) if saved else {}),
        **({"mpirun": find_mpirun(wanted, dict(os.environ))} if wanted else {}),
    }


def keep_source(path: str) -> bool:
    """Tell whether a source is there; if so, it counts as used, so that it stays there."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)
        return True
    return False


def fitness(root: str) -> Json:
    """Return what makes a host fit for training or unfit, as far as it costs nothing to know."""
    import glob
    import resource

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "disk_free": disk_free(root),
        "shm_free": disk_free("/dev/shm"),
        "memlock": None if limit == resource.RLIM_INFINITY else limit,
        "infiniband": infiniband(),
        "gpu_devices": len(glob.glob("/dev/nvidia[0-9]*")),
    }
