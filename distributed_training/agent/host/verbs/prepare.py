"""A node is reserved, and gets its agents."""

from __future__ import annotations

import os
import signal
import time

from .. import bundle, relay
from ..children import detach
from ..errors import Refusal, unwritable
from ..files import write_whole
from ..housekeeping import keep_house
from ..node import Node
from ..supervisor import PREPARED_WAIT
from ..watchdog import watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def prepare(request: Json, call: Call) -> Json:
    """Reserve a node and check that its ranks can start."""
    node = Node.of(request)
    if (request.get("stop_signal") or "SIGTERM") not in signal.Signals.__members__:
        raise Refusal("bad_request", f"stop_signal {request['stop_signal']!r} is no signal's name")
    until = time.monotonic() + PREPARED_WAIT
    while True:
        created = create(node, request)
        reply = node.ask({"verb": "prepare"})
        if reply:
            return reply if created or not reply["ok"] else {**reply, "already": True}
        again = node.never_started()
        if again and not node.agents():
            node.remove()
            continue
        if node.ended() and not again:
            raise Refusal("ended", f"attempt {node.mark} has ended here: use another attempt")
        if created or time.monotonic() > until:
            raise Refusal("lost", f"the agent of {node.mark} died: see {node.at('agent.log')}")
        time.sleep(0.05)


def create(node: Node, request: Json) -> bool:
    """Make a node and its agents, or return False if it has been made."""
    try:
        if not node.create():
            return False
        write_whole(node.at("agent.pyz"), bundle.read())
        if request.get("mpirun"):
            write_whole(node.at(relay.FILE), relay.script(node))
            os.chmod(node.at(relay.FILE), 0o700)
        if request.get("site"):
            os.mkdir(node.at("site"), 0o700)
            write_whole(node.at("site", "sitecustomize.py"), request["site"].encode())
        server = node.server()
    except OSError as error:
        node.remove()
        raise unwritable(node.path, error) from error
    detach(lambda: watchdog(node, request, server), node.at("agent.log"), [server.fileno()])
    server.close()
    keep_house(node.root, request)
    return True
