"""Why a host should not be used: it was drained, or has a fault of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time

from .files import read_text, umask
from .locks import open_lock
from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


# Where marks outlive a restart of the host, for all its users.
WITHHELD = os.path.join(
    os.environ.get("DT_LOCK_DIR") or "/var/tmp/.distributed_training", "withheld.json"
)


def withheld() -> Json:
    """Return who has drained the host, and its last fault of its own."""
    line = read_text(WITHHELD).partition("\n")[0]  # it is written by one call, and then cut
    with contextlib.suppress(ValueError):
        record = json.loads(line)
        return record if isinstance(record, dict) else {}
    return {}


def withhold(marks: Json) -> None:
    """Note for all users of the host why it should not be used; None takes a mark back."""
    with contextlib.suppress(FileExistsError), umask(0):
        os.mkdir(os.path.dirname(WITHHELD), 0o1777)
    fd = open_lock(WITHHELD)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever writes takes no time
        stamped = {name: {"since": time.time(), **mark} for name, mark in marks.items() if mark}
        kept = {name: mark for name, mark in withheld().items() if name not in marks}
        line = encode({**kept, **stamped}).encode("utf-8", "replace") + b"\n"
        os.pwrite(fd, line, 0)
        os.ftruncate(fd, len(line))
    finally:
        os.close(fd)


def note_fault(reason: str) -> None:
    """Note a fault of the host's own, if that can be done: it is not worth a job's end."""
    with contextlib.suppress(OSError):
        withhold({"fault": {"reason": reason}})
