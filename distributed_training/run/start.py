"""Start all ranks of a prepared job, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_training.environment import SCRUB
from distributed_training.run.agents import HostAgent, on_all
from distributed_training.run.job import JobRef
from distributed_training.run.stop import stop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distributed_training.plan import Node, Plan


async def start(plan: Plan, agents: Mapping[str, HostAgent]) -> None:
    """Execute every process of the plan; if one cannot be executed, end all others.

    :raises TrainingError: every host is named on which a program could not be executed
    """

    async def begin(node: Node) -> None:
        await agents[node.host.name].call(
            "start",
            job=plan.spec.job_id,
            attempt=plan.attempt,
            node=node.node_rank,
            scrub=list(SCRUB),
            ranks=[rank.rank for rank in node.ranks],
            serves={rank.rank: rank.serves for rank in node.ranks if rank.serves is not None},
            group_size=plan.group_size,
            elastic=plan.spec.min_nodes is not None,
            start_timeout=plan.spec.start_timeout,
            processes=[
                {
                    "name": process.name,
                    "rank": process.rank,
                    "argv": list(process.argv),
                    "env": dict(process.env),
                    "defaults": dict(process.defaults),
                    "no_proxy": list(process.no_proxy),
                    "with_mpi4py": process.with_mpi4py,
                    "started_by": process.started_by,
                }
                for process in node.processes
            ],
        )

    try:
        await on_all(plan.nodes, begin)
    except BaseException:
        await stop(JobRef.of(plan), agents, reason="not started", wait=plan.spec.grace_period)
        raise
