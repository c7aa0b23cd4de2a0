"""One process per rank, each started by its node's agent with the complete torch environment."""

from __future__ import annotations

from distributed_training.environment import default_environment, rank_environment
from distributed_training.launchers.base import Launcher, program_argv
from distributed_training.plan import Node, Plan, Process, Rank


class ProcessLauncher(Launcher):
    """Start ranks one by one: nothing stands between the agent and the training process."""

    name = "process"

    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return a process for each rank of the node."""
        return tuple(self._process(plan, node, rank) for rank in node.ranks)

    def _process(self, plan: Plan, node: Node, rank: Rank) -> Process:
        option = plan.spec.local_rank_argument
        return Process(
            name=f"rank-{rank.rank}",
            rank=rank.rank,
            argv=program_argv(plan.spec, f"{option}={rank.local_rank}" if option else None),
            env=rank_environment(plan, node, rank),
            defaults=default_environment(plan, node),
        )
