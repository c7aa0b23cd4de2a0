"""End a job on all its hosts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed_training.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distributed_training.run.agents import HostAgent
    from distributed_training.run.job import JobRef, NodeRef

_MARGIN = 10.0  # seconds beyond the grace period until survivors are a failure


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of a node that was asked to end.

    ``state`` is ``ended`` (nothing is left of it), ``stopping``, ``not_owner`` (somebody else
    watches the job now, and it was left alone), ``unknown`` (the host never had it) or
    ``unconfirmed`` (the host did not answer).
    """

    node: NodeRef
    state: str
    detail: str = ""


async def stop(
    ref: JobRef,
    agents: Mapping[str, HostAgent],
    *,
    reason: str,
    owner: str | None = None,
    unwatched: bool = False,
    wait: float = 0.0,
) -> list[Stopped]:
    """Ask every node to end the job, all at once; a host that hangs does not delay the others.

    :param agents: by name of the host
    :param owner: end it only if this watcher still owns the job; None ends it in any case
    :param unwatched: end it also if whoever owns it is silent
    :param wait: seconds of the job's own grace period to wait for; 0 returns when told
    """

    async def end(node: NodeRef) -> Stopped:
        try:
            answer = await agents[node.host.name].call(
                "stop",
                within=wait + _MARGIN if wait else _MARGIN,
                job=ref.job_id,
                attempt=ref.attempt,
                node=node.node_rank,
                reason=reason,
                owner=owner,
                unwatched=unwatched,
                wait=wait + _MARGIN / 2 if wait else 0.0,
            )
        except TrainingError as error:
            return Stopped(node, "unconfirmed", error.message)
        return Stopped(node, answer["state"])

    return list(await asyncio.gather(*(end(node) for node in ref.nodes)))
