"""Where a node stands, told by its journal."""

from __future__ import annotations

import contextlib
import os

from .facts import boot_id
from .journal import events
from .members import Members

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node
    from .records import Json


def summary(node: Node) -> Json:
    """Return where a node stands, from its journal."""
    if not os.path.isdir(node.path):
        return {"state": "unknown", "ranks": {}, "survivors": 0, "boot_id": boot_id()}
    facts: Json = {"state": "preparing", "ranks": {}, "cancelled": None, "ended": None}
    for event in events(node.journal):
        note_event(facts, event)
    state = node.state()
    told = ("job", "attempt", "node", "label", "slots", "since")
    return {
        **facts,
        **{name: state.get(name, node.key.get(name)) for name in told},
        "dir": node.path,
        "grace_period": state.get("grace_period"),
        "watched": watched(node),
        "agents": len(node.agents()),
        "survivors": len(survivors(node)),
        "boot_id": boot_id(),
    }


def watched(node: Node) -> float | None:
    """Return when somebody last took over lines of the journal, else when the node was made."""
    for name in ("acknowledged", "state.json"):
        with contextlib.suppress(OSError):
            return os.stat(node.at(name)).st_mtime
    return None


def note_event(facts: Json, event: Json) -> None:
    """Bring the summary of a node up to one event."""
    kind = event.get("k")
    states = {"started": "running"}
    if kind in ("prepared", "started", "ending", "ended"):
        facts["state"] = states.get(str(kind), kind)
    if kind == "cancel":
        facts["cancelled"] = event["reason"]
    elif kind == "ended":
        facts["ended"] = event
    elif kind in ("started", "exit") and event["rank"] is not None:
        ended = {name: event.get(name) for name in ("pid", "code", "signal")}
        how = "running" if kind == "started" else "exited"
        facts["ranks"][str(event["rank"])] = {"state": how, **ended}


def survivors(node: Node) -> list[int]:
    """Return the processes of a job that live."""
    return sorted(process.pid for process in Members(node.mark, node.agents()).find())
