"""The watchdog: ends what the supervisor leaves behind if it dies."""

from __future__ import annotations

import os
import signal

from .children import become_reaper, fork, set_oom_score
from .exits import exit_of
from .supervisor import Supervisor
from .takeover import take_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from .node import Node
    from .records import Json


def watchdog(node: Node, request: Json, server: socket.socket) -> None:
    """Run the supervisor, and end what it leaves behind if it dies."""
    become_reaper()
    set_oom_score("self", -900)
    supervisor = fork(lambda: supervise(node, request, server))
    server.close()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor has them too, and ends in good order
    pid, status = os.wait()
    while pid != supervisor:
        pid, status = os.wait()
    if status != 0:
        code, name = exit_of(status)
        take_over(node, f"its supervisor was killed by {name}" if name else f"exit code {code}")


def supervise(node: Node, request: Json, server: socket.socket) -> None:
    """Run the supervisor in a session of its own."""
    os.setsid()
    Supervisor(node, request, server).run()
