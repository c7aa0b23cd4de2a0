"""The ranks of a prepared node are started."""

from __future__ import annotations

from ..errors import Refusal
from ..journal import events
from ..node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def start(request: Json, call: Call) -> Json:
    """Start the ranks of a prepared node."""
    node = Node.of(request)
    reply = node.ask(request)
    if reply:
        return reply
    started = (event for event in events(node.journal) if event["k"] == "started")
    pids = {event["name"]: event["pid"] for event in started}
    if pids:
        return {"ok": True, "pids": pids, "already": True}
    why = (node.ended() or {}).get("reason") or "it has never been prepared on this host"
    raise Refusal("not_prepared", f"cannot start {node.mark}: {why}")
