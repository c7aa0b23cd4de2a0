"""Facts of the host that many ask for."""

from __future__ import annotations

import os

from .files import read_text

TYPE_CHECKING = False


def boot_id() -> str:
    """Return what changes whenever the host starts."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def user_name(uid: int | None = None) -> str:
    """Return a user's name, or the number of one without a name."""
    import pwd

    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
