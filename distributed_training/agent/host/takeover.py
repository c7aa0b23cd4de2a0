"""The end of a job whose supervisor is gone."""

from __future__ import annotations

import os
import signal
import time

from .evidence import exit_story
from .exits import exit_record, reaped
from .journal import Journal, events
from .leftovers import leave_nothing
from .members import ACTIVE_POLL, Ending, Members
from .processes import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node
    from .records import Json


def take_over(node: Node, why: str) -> None:
    """End what is left of a job whose supervisor is gone."""
    state = node.state()
    journal = Journal(node.journal)
    stop_signal = state.get("stop_signal") or "SIGTERM"
    ending_record = {"reason": "agent lost", "signal": stop_signal}
    if not journal.add_unless_ended(("ending", ending_record)):
        return
    here = Process.find(os.getpid())
    members = Members(node.mark, [here] if here else [])
    ending = Ending(members, signal.Signals[stop_signal], float(state.get("grace_period") or 0))
    statuses: dict[int, int] = {}
    while not ending.step():
        statuses.update(reaped())
        time.sleep(ACTIVE_POLL)
    statuses.update(reaped())
    leave_nothing(float(state.get("since") or time.time()), node.path)
    exits = [lost_exit(node, event, statuses.get(event["pid"])) for event in unfinished(node)]
    note = {"m": f"the last lines of the ranks may only be in {node.at('logs')}"}
    end = {"state": "lost", "reason": f"agent lost: {why}", "survivors": ending.survivors}
    # At once, since two calls that find the agents gone may both be here.
    journal.add_unless_ended(*(("exit", each) for each in exits), ("note", note), ("ended", end))


def unfinished(node: Node) -> list[Json]:
    """Return the started records of a journal that have no exit record."""
    running: dict[str, Json] = {}
    for event in events(node.journal):
        if event.get("k") == "started":
            running[event["name"]] = event
        elif event.get("k") == "exit":
            running.pop(event["name"], None)
    return list(running.values())


def lost_exit(node: Node, event: Json, status: int | None) -> Json:
    """Return the exit record of a process whose supervisor did not see its end."""
    elapsed = time.time() - event["t"]
    record = exit_record(event["name"], event["rank"], event["pid"], status, elapsed)
    if node.state().get("secrets") and node.hide is str:  # they went with the supervisor
        untold = {"tail": ["(left out, since it may hold secrets)"], "traceback": [], "nccl": []}
        return {**record, **untold, "by_us": True, "oom": False}
    return {**record, **exit_story(node, record), "by_us": True, "oom": False}
