"""The InfiniBand of this host, as far as its user may use it."""

from __future__ import annotations

import os

from .files import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


PORTS, DEVICES = "/sys/class/infiniband", "/dev/infiniband"


def infiniband(ports: str = PORTS, devices: str = DEVICES) -> Json:
    """Return the state of each port, and which device files there are; empty where there are none.

    A file is ``closed`` if this user cannot open it, as every program that uses InfiniBand does.
    """
    import glob

    if not os.path.isdir(devices):
        return {}
    states = {}
    for path in sorted(glob.glob(os.path.join(ports, "*/ports/*/state"))):
        device, _, port, _ = path.split(os.sep)[-4:]
        states[f"{device}:{port}"] = read_text(path).strip().rpartition(": ")[2]  # "4: ACTIVE"
    files = sorted(glob.glob(os.path.join(devices, "uverbs*")))  # one for each adapter
    closed = [path for path in files if not os.access(path, os.R_OK | os.W_OK)]
    return {"ports": states, "files": files, "closed": closed}
