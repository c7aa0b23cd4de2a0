"""Whether this host gets an answer from another one."""

from __future__ import annotations

from ..network import knock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


NEIGHBOUR_TIMEOUT = 5.0  # seconds that a host is given to answer another one


def reach(request: Json, call: Call) -> Json:
    """Tell whether this host gets any answer from another one: a refusal is one, too."""
    try:
        knock(request["address"], request["port"], NEIGHBOUR_TIMEOUT)
    except ConnectionRefusedError:
        pass
    except OSError as error:
        return {"ok": True, "reached": False, "why": error.strerror or str(error)}
    return {"ok": True, "reached": True}
