"""Let ranks end that serve others, once these have done their work on all hosts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from distributed_training.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Collection

    from distributed_training.run.agents import HostAgent
    from distributed_training.run.job import JobRef
    from distributed_training.run.verdict import NodeState

_RETRY = 2.0  # seconds until a host that could not be told is told again


def work_is_done(states: Collection[NodeState]) -> bool:
    """Return whether every rank that has to end by itself has done so, and well."""
    ended = {exit_["rank"] for state in states for exit_ in state.exits if exit_["code"] == 0}
    working = {rank for each in states for rank in {*each.ref.ranks} - {*each.ref.servers}}
    return working <= ended


async def release(ref: JobRef, state: NodeState, agent: HostAgent) -> None:
    """Tell a node that its servers may end, until it has heard it or has ended otherwise."""
    while state.running:
        try:
            await agent.call(
                "release", job=ref.job_id, attempt=ref.attempt, node=state.ref.node_rank
            )
        except TrainingError:  # whoever follows its journal tells that it is out of reach
            await asyncio.sleep(_RETRY)
        else:
            return
