"""One ``torchrun`` per node, which starts the ranks of that node."""

from __future__ import annotations

from distributed_training.environment import default_environment, node_environment
from distributed_training.launchers.base import Launcher, program_argv
from distributed_training.plan import Node, Plan, Process


class TorchrunLauncher(Launcher):
    """Start torchrun with static rendezvous, so that rank 0 is on the head whatever the order.

    Flags are those of https://docs.pytorch.org/docs/stable/elastic/run.html. Each rank runs
    below the agent's ``rank`` command, which gives it a log of its own and records its exit:
    torchrun's exit status alone does not say which rank failed, and where.
    """

    name = "torchrun"

    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return the node's torchrun."""
        return (
            Process(
                name="launcher",
                rank=None,
                argv=(*self._torchrun(plan, node), *self._rank_command(plan, node)),
                env=node_environment(plan, node),
                defaults=default_environment(plan, node),
            ),
        )

    def _torchrun(self, plan: Plan, node: Node) -> tuple[str, ...]:
        return (
            plan.spec.python, "-m", "torch.distributed.run",
            f"--nnodes={len(plan.nodes)}",
            f"--nproc-per-node={len(node.ranks)}",
            f"--node-rank={node.node_rank}",
            f"--master-addr={plan.head.address}",
            f"--master-port={plan.master_port}",
            # Else torchrun publishes the host's name, which other hosts may not resolve.
            f"--local-addr={node.address}",
            f"--log-dir={node.folder}/torchrun",  # else it leaves folders in /tmp
            "--max-restarts=0",
            "--no-python",
        )  # fmt: skip

    def _rank_command(self, plan: Plan, node: Node) -> tuple[str, ...]:
        option = plan.spec.local_rank_argument
        program = program_argv(plan.spec, f"{option}=" if option else None)
        # The rank command completes that word, since only it knows the rank's number.
        place = (f"--local-rank-at={program.index(f'{option}=')}",) if option else ()
        return ("python3", f"{node.folder}/agent.pyz", "rank", *place, "--", *program)
