"""A node of an elastic job is lost: ranks that wait for those of it have to begin anew."""

from __future__ import annotations

from ..node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def shrink(request: Json, call: Call) -> Json:
    """Tell the supervisor; where there is none, there is nobody to be told."""
    return Node.of(request).ask({"verb": "shrink", "nodes": request["nodes"]}) or {"ok": True}
