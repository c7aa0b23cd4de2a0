"""How jobs on this host stand."""

from __future__ import annotations

from ..folders import root_of
from ..node import Node, nodes
from ..standing import summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def status(request: Json, call: Call) -> Json:
    """Tell how a job on this host stands, or all jobs."""
    if request.get("job") is not None:
        return {"ok": True, **summary(Node.of(request))}
    return {"ok": True, "jobs": [summary(node) for node in nodes(root_of(request))]}
