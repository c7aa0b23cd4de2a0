"""A host is drained, given a fault, or given back."""

from __future__ import annotations

from ..errors import unwritable
from ..withheld import WITHHELD, withheld, withhold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def mark(request: Json, call: Call) -> Json:
    """Drain the host, note a fault of its own, or give it back, for all users of the host."""
    marks: Json = {name: request[name] for name in ("drained", "fault") if name in request}
    try:
        withhold(marks)
    except OSError as error:
        raise unwritable(WITHHELD, error) from error
    return {"ok": True, **withheld()}
