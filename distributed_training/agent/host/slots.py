"""Slots of a host: all that a job wants, or none."""

from __future__ import annotations

import os

from .errors import Refusal
from .locks import LOCK_FOLDER, Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Json


def take_all(names: Sequence[str], holder: Json, claims: dict[str, Json]) -> list[Lock]:
    """Take the locks of all slots, or none; those that older jobs wait for are left to them."""
    refused = [name for name in names if name in claims]
    locks = {name: Lock.take(name, holder) for name in names if not refused}
    taken = [lock for lock in locks.values() if lock]
    if len(taken) == len(names):
        return taken
    for lock in taken:
        lock.release()
    refused = refused or [name for name, lock in locks.items() if not lock]
    holders = {name: Lock.holder(name) or claims.get(name) or {} for name in refused}
    told = ", ".join(
        f"{name} {'awaited' if who.get('waiting') else 'held'} by job {who.get('job', '?')} "
        f"of user {who.get('user', '?')}"
        for name, who in holders.items()
    )
    message = f"slots in use: {told}; wait for them with queue_timeout=, or stop that job"
    raise Refusal("slots_busy", message, holders=holders)


def busy_slots() -> dict[str, Json]:
    """Return who holds each slot in use."""
    names = sorted(os.listdir(LOCK_FOLDER)) if os.path.isdir(LOCK_FOLDER) else []
    locks = (name[: -len(".lock")] for name in names if name.endswith(".lock"))
    holders = ((name, Lock.holder(name)) for name in locks if not name.startswith("port-"))
    return {name: holder for name, holder in holders if holder is not None}
