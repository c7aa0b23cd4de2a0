"""A command of a launcher on another host is run here."""

from __future__ import annotations

from ..errors import Refusal
from ..node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def relay(request: Json, call: Call) -> Json:
    """Start a daemon of a launcher, once, among the processes of the job."""
    node = Node.of(request)
    reply = node.ask({"verb": "daemon", "id": request["id"], "command": request["command"]})
    if reply is None:
        raise Refusal("not_prepared", f"cannot start a daemon in {node.mark}: it has ended")
    return reply
