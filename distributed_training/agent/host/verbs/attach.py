"""A journal is sent from an offset, and followed."""

from __future__ import annotations

import os
import time

from ..call import buffered_stdin
from ..errors import Refusal
from ..facts import boot_id
from ..files import read_text, write_whole
from ..journal import events
from ..node import Node
from ..watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


PASSED_ON = ("started", "exit", "relay", "ended")


def attach(request: Json, call: Call) -> None:
    """Send a journal from an offset, and follow it."""
    node = Node.of(request)
    if not os.path.exists(node.journal):
        raise Refusal("unknown", f"{node.mark} has never been prepared on this host")
    owner = str(request.get("owner") or "")
    if owner:
        claim(node, owner, request)
    journal = os.open(node.journal, os.O_RDONLY | os.O_CLOEXEC)
    size = os.fstat(journal).st_size
    offset = request.get("offset")
    if offset is None:
        offset = int(read_text(node.at("acknowledged")) or 0)
    offset = min(offset, size)  # a host that lost its power may have lost the end of the journal
    facts = {"offset": offset, "boot_id": boot_id(), "clock": time.time(), "size": size}
    # A watcher that takes over has not seen what happened before the offset.
    passed = [each for each in events(node.journal, offset) if each["k"] in PASSED_ON]
    call.reply({"ok": True, "attached": True, "passed": passed, **facts})
    renews, metrics = request.get("renews", True), int(request.get("metrics") or 0)
    Watch(node, journal, offset, buffered_stdin(), owner, renews, metrics).run()
    if owner and owner == read_text(node.at("owner")):
        node.leave()


def claim(node: Node, owner: str, request: Json) -> None:
    """Make a watcher the owner of a job, unless another one is at work or has replaced it."""
    if owner != read_text(node.at("owner")):
        if request.get("again"):
            raise Refusal("taken_over", f"another watcher has taken {node.mark} over")
        if node.fresh("owner") and not request.get("force"):
            write_whole(node.at("claimant"), owner.encode())
            raise Refusal("taken_over", f"another watcher watches {node.mark}")
    write_whole(node.at("owner"), owner.encode())
