"""The ranks that others needed may end, since these are done on all hosts."""

from __future__ import annotations

from ..node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def release(request: Json, call: Call) -> Json:
    """Tell the supervisor; where there is none, there is nobody to be told."""
    return Node.of(request).ask({"verb": "release"}) or {"ok": True}
