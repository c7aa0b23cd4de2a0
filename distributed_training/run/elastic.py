"""A job that goes on without hosts that it has lost: which are left, and what these have done.

Whether it may is torchrun's to say, which starts the ranks again on the hosts that are left. What
torchrun cannot see is told from here: that a host is lost from which no word comes any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from typing import TYPE_CHECKING, Any

from distributed_training.errors import TrainingError
from distributed_training.run.stop import stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distributed_training.run.agents import HostAgent
    from distributed_training.run.job import JobRef
    from distributed_training.run.verdict import NodeState

FENCED = "the job has gone on without this host"
_CUT_OFF = re.compile(r"RendezvousConnectionError")  # torchrun's word for a head out of its reach
_RETRY = 2.0  # seconds until a host that could not be told is told again


def left(ref: JobRef, states: Sequence[NodeState]) -> list[NodeState]:
    """Return the nodes that the job has not lost."""
    return [state for state in states if not _is_gone(ref, state, states[0])]


def may_go_on(ref: JobRef, states: Sequence[NodeState]) -> bool:
    """Return whether the nodes that are left are enough; the head keeps their rendezvous."""
    those = left(ref, states)
    enough = ref.min_nodes is not None and len(those) >= ref.min_nodes
    return enough and states[0] in those


def has_regrouped(ref: JobRef, states: Sequence[NodeState]) -> bool:
    """Return whether no rank has had peers on a lost host when it ended last."""
    those = left(ref, states)
    groups = [_last_group(state) for state in those]
    return all(group["nodes"] <= len(those) for group in groups if group)


def is_whole(ref: JobRef, states: Sequence[NodeState]) -> bool:
    """Return whether every rank of one group has succeeded, on the hosts that are left."""
    ends = [state.ended or {} for state in left(ref, states)]
    if ref.min_nodes is None or not ends or any(end.get("state") != "success" for end in ends):
        return False
    ranks = sorted(rank for end in ends for rank in end["ranks"])
    return all(ranks == list(range(end["world_size"])) for end in ends)


def remains(ref: JobRef, states: Sequence[NodeState]) -> JobRef:
    """Return the reference to what a job that has succeeded was in the end."""
    nodes = {state.ref.node_rank: state.ended or {} for state in left(ref, states)}
    return dataclasses.replace(
        ref,
        nodes=tuple(
            dataclasses.replace(node, ranks=tuple(nodes[node.node_rank]["ranks"]))
            for node in ref.nodes
            if node.node_rank in nodes
        ),
    )


async def shrink(ref: JobRef, state: NodeState, agent: HostAgent, nodes: int) -> None:
    """Tell a node how many are left, until it has heard it or has ended."""
    while state.running:
        try:
            await agent.call(
                "shrink",
                job=ref.job_id,
                attempt=ref.attempt,
                node=state.ref.node_rank,
                nodes=nodes,
            )
        except TrainingError:  # whoever follows its journal tells that it is out of reach
            await asyncio.sleep(_RETRY)
        else:
            return


async def fence(ref: JobRef, state: NodeState, agents: Mapping[str, HostAgent]) -> None:
    """End what a lost host still runs, as soon as it can be reached again."""
    only = dataclasses.replace(ref, nodes=(state.ref,))
    while True:
        (answer,) = await stop(only, agents, reason=FENCED)
        if answer.state != "unconfirmed":
            return
        await asyncio.sleep(_RETRY)


def _is_gone(ref: JobRef, state: NodeState, head: NodeState) -> bool:
    if state.lost is not None:
        return True
    ended = state.ended or {}
    if ended.get("state") == "lost":
        return True
    fenced = ended.get("reason") == f"stopped: {FENCED}"
    return ref.min_nodes is not None and (fenced or _was_cut_off(state, head))


def _was_cut_off(state: NodeState, head: NodeState) -> bool:
    """Return whether a node has failed because it did not reach the head, which is well."""
    ended = state.ended or {}
    if state is head or ended.get("state") != "failed":
        return False
    well = head.running or (head.ended or {}).get("state") == "success"
    launchers = [exit_ for exit_ in state.exits if exit_["rank"] is None]
    return well and any(_CUT_OFF.search("\n".join(exit_["tail"])) for exit_ in launchers)


def _last_group(state: NodeState) -> Mapping[str, Any] | None:
    """Return the group of a node's rank that ended last."""
    ranks = [exit_ for exit_ in state.exits if exit_.get("group")]
    return max(ranks, key=lambda exit_: exit_["t"])["group"] if ranks else None
