"""Ended jobs and sources that are old are removed on request."""

from __future__ import annotations

from ..housekeeping import tidy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def gc(request: Json, call: Call) -> Json:
    """Remove ended jobs and sources that are old, and the oldest beyond a size."""
    return tidy(request)
