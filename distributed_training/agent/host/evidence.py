"""What a process left to say about its end."""

from __future__ import annotations

from .lines import clean
from .logs import TAIL_LINES, TAIL_WIDTH, log_end
from .tracebacks import shortened, torch_error, traceback_of
from .transports import NCCL_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node
    from .records import Json


WARNING_LINES = 5


def exit_story(node: Node, record: Json) -> Json:
    """Return what a process left to say about its end."""
    told = record.pop("traceback", None)
    if record["code"] == 0:
        return {"tail": [], "traceback": [], "nccl": []}
    lines = log_end(node.at("logs", f"{record['name']}.log"), node.hide)
    error = told or torch_error(node.at("ranks", f"{record['rank']}.error"))
    from_nccl = log_end(node.at("logs", f"{NCCL_PREFIX}{record['pid']}.log"), node.hide)
    trace = [node.hide(clean(line))[:TAIL_WIDTH] for line in shortened(error)]
    return {
        "tail": lines[-TAIL_LINES:],
        "traceback": trace or traceback_of(lines),
        "nccl": [line for line in [*lines, *from_nccl] if "NCCL WARN" in line][-WARNING_LINES:],
    }
