"""Where every rank stands."""

from __future__ import annotations

import contextlib
import os
import time

from ..errors import Refusal
from ..files import read_text
from ..gpus import gpu_states
from ..node import Node
from ..recorders import ask_recorders, recorded
from ..stacks import STACKS_SHOWN, keep_stacks, question, spy, witnesses_of
from ..standing import summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


STACKS_WAIT = 3.0
PROCESSES_SHOWN, PROCESSES_SPIED = 8, 2  # of one rank


def dump(request: Json, call: Call) -> Json:
    """Tell where every rank stands, what its last collectives were, and how busy the GPUs are."""
    node = Node.of(request)
    if not os.path.exists(node.journal):
        raise Refusal("unknown", f"{node.mark} has never been prepared on this host")
    until = time.monotonic() + float(request.get("wait") or STACKS_WAIT)
    asked = ask_recorders(node)
    ranks = summary(node)["ranks"]
    running = {rank: known["pid"] for rank, known in ranks.items() if known["state"] == "running"}
    witnesses = {rank: witnesses_of(node, pid) for rank, pid in running.items()}
    question([each for group in witnesses.values() for each in group], until)
    for rank, group in witnesses.items():
        for each in group[:PROCESSES_SPIED]:
            spy(each)
        ranks[rank]["processes"] = [each.told() for each in group[:PROCESSES_SHOWN]]
    with contextlib.suppress(OSError):  # a full disk
        keep_stacks(node, witnesses)
    errors = read_text(node.at("site", "errors"))[-STACKS_SHOWN:]
    evidence = {"gpus": gpu_states(), "nccl": recorded(node, asked, until), "errors": errors}
    return {"ok": True, "ranks": ranks, **evidence}
