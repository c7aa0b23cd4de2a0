"""A launcher learns how its command has ended on another host."""

from __future__ import annotations

from ..node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def relayed(request: Json, call: Call) -> Json:
    """Tell the supervisor; where that has ended, nobody waits any more."""
    message = {"verb": "relayed", "id": request["id"], "code": request["code"]}
    return Node.of(request).ask(message) or {"ok": True}
