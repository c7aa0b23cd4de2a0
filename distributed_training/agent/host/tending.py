"""Nodes whose agents were killed, or ended by a restart of the host."""

from __future__ import annotations

import contextlib
import os

from .children import detach
from .facts import boot_id
from .files import read_text, write_whole
from .node import nodes
from .withheld import note_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node


def tend(node: Node) -> None:
    """Let a new process end what killed agents have left behind."""
    # In this order: agents note who they are after they are made, and write the end before they go.
    if node.unborn() or node.agents() or node.over():
        return
    why = "the host was restarted" if node.restarted() else "both its agents were killed"
    if node.restarted():
        note_fault(f"it was restarted while job {node.key['job']} ran on it")
    from .takeover import take_over  # few calls come here

    detach(lambda: take_over(node, why), node.at("agent.log"))


def note_restart(root: str) -> None:
    """Notice jobs that a restart of the host has ended, once after each."""
    stamp = os.path.join(root, "boot_id")
    if not os.path.isdir(root) or read_text(stamp) == boot_id():
        return
    for node in nodes(root):
        tend(node)
    with contextlib.suppress(OSError):
        write_whole(stamp, boot_id().encode())
