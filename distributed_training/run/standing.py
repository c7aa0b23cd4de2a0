"""How a job of an earlier try stands on its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from distributed_training.errors import TrainingError
from distributed_training.run.agents import HostAgent, on_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distributed_training.run.job import JobRef, NodeRef

Standing = Literal["running", "success"]


async def standing(ref: JobRef, agents: Mapping[str, HostAgent]) -> Standing | None:
    """Return how the job stands, or None: then nothing of it can be gone on with.

    It runs while a node does and none has failed: ranks may wait for others on other nodes.

    :param agents: by name of the host
    """

    async def ask(node: NodeRef) -> Standing | None:
        answer = await agents[node.host.name].call(
            "status", job=ref.job_id, attempt=ref.attempt, node=node.node_rank
        )
        return _standing(answer)

    try:
        seen = set(await on_all(ref.nodes, ask))
    except TrainingError:
        return None
    if None in seen:
        return None
    return "running" if "running" in seen else "success"


def _standing(status: Mapping[str, Any]) -> Standing | None:
    if status.get("cancelled"):
        return None
    if status["state"] == "running":
        return "running"
    ended = status.get("ended") or {}
    return "success" if ended.get("state") == "success" else None
