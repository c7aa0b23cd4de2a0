"""One ``torchrun`` per node, which starts the ranks of that node."""

from __future__ import annotations

from distributed_training.environment import default_environment, node_environment
from distributed_training.launchers.base import Launcher, program_argv, socket_address
from distributed_training.plan import Node, Plan, Process


class TorchrunLauncher(Launcher):
    """Start torchrun with static rendezvous, so that rank 0 is on the head whatever the order.

    An elastic job has the rendezvous that torchrun calls c10d, kept by the head's torchrun.
    Flags are those of https://docs.pytorch.org/docs/stable/elastic/run.html. Each rank runs
    below the agent's ``rank`` command, which gives it a log of its own and records its exit:
    torchrun's exit status alone does not say which rank failed, and where.
    """

    name = "torchrun"
    is_elastic = True

    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return the node's torchrun."""
        return (
            Process(
                name="launcher",
                rank=None,
                argv=(*self._torchrun(plan, node), *self._rank_command(plan, node)),
                env={**node_environment(plan, node), **_elastic_environment(plan)},
                defaults=default_environment(plan, node),
            ),
        )

    def _torchrun(self, plan: Plan, node: Node) -> tuple[str, ...]:
        return (
            plan.spec.python, "-m", "torch.distributed.run",
            f"--nproc-per-node={len(node.ranks)}",
            *_rendezvous(plan, node),
            # Else torchrun publishes the host's name, which other hosts may not resolve.
            f"--local-addr={node.address}",
            f"--log-dir={node.folder}/torchrun",  # else it leaves folders in /tmp
            "--no-python",
        )  # fmt: skip

    def _rank_command(self, plan: Plan, node: Node) -> tuple[str, ...]:
        option = plan.spec.local_rank_argument
        program = program_argv(plan.spec, f"{option}=" if option else None)
        # The rank command completes that word, since only it knows the rank's number.
        place = (f"--local-rank-at={program.index(f'{option}=')}",) if option else ()
        elastic = () if plan.spec.min_nodes is None else ("--elastic",)
        return ("python3", f"{node.folder}/agent.pyz", "rank", *place, *elastic, "--", *program)


def _rendezvous(plan: Plan, node: Node) -> tuple[str, ...]:
    """Return how the torchruns of all nodes meet, and how often they start their ranks again."""
    spec = plan.spec
    if spec.min_nodes is None:
        return (
            f"--nnodes={len(plan.nodes)}",
            f"--node-rank={node.node_rank}",
            f"--master-addr={plan.head.address}",
            f"--master-port={plan.master_port}",
            "--max-restarts=0",
        )
    return (
        f"--nnodes={spec.min_nodes}:{len(plan.nodes)}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={socket_address(plan.head.address, plan.master_port)}",
        f"--rdzv-id={spec.job_id}-{plan.attempt}",
        # Else torchrun guesses by names whether it is the head, which not all hosts know.
        f"--rdzv-conf=is_host={int(node is plan.head)}",
        f"--max-restarts={spec.max_restarts}",
    )


def _elastic_environment(plan: Plan) -> dict[str, str]:
    """Return what keeps the ranks that torchrun starts again apart from those before."""
    if plan.spec.min_nodes is None:
        return {}
    # Else all of them meet in one store, where the keys of those that have ended are left.
    return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
