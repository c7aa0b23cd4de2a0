"""A job is ended on this host."""

from __future__ import annotations

import os
import time

from ..files import read_text
from ..journal import Journal
from ..node import Node
from ..standing import survivors
from ..tending import tend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def stop(request: Json, call: Call) -> Json:
    """End a job on this host, whoever tends it."""
    node = Node.of(request)
    owner = request.get("owner")
    if not os.path.isdir(node.path):
        return {"ok": True, "state": "unknown", "survivors": 0}
    if owner is not None and not owns(node, owner, bool(request.get("unwatched"))):
        return {"ok": True, "state": "not_owner", "survivors": len(survivors(node))}
    reason = str(request.get("reason") or "stopped")
    if Journal(node.journal).add_unless_ended(("cancel", {"reason": reason})):
        reply = node.ask({"verb": "stop", "reason": reason}, timeout=2)
        if reply is None:
            tend(node)
    until = time.monotonic() + float(request.get("wait") or 0)
    while not node.over() and time.monotonic() < until:
        time.sleep(0.02)
    state = "ended" if node.over() else "stopping"
    return {"ok": True, "state": state, "survivors": len(survivors(node))}


def owns(node: Node, owner: str, unwatched: bool) -> bool:
    """Tell whether a watcher may end a job: nobody has replaced it, nor is about to.

    :param unwatched: it has not watched yet, and may end what nobody watches
    """
    if node.fresh("claimant") and owner != read_text(node.at("claimant")):
        return False
    return owner == read_text(node.at("owner")) or (unwatched and not node.fresh("owner"))
