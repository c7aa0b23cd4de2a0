"""One process per task of a TensorFlow cluster, each told of all others by ``TF_CONFIG``."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from distributed_training.environment import (
    gpu_environment,
    interface_environment,
    job_environment,
    user_environment,
)
from distributed_training.launchers.base import Launcher, program_argv, socket_address
from distributed_training.launchers.dealing import dealt
from distributed_training.placing import assembled
from distributed_training.plan import Node, Plan, Process, Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_training.cluster import Cluster, Task
    from distributed_training.plan import JobSpec, Offer

_NO_GPU = "-1"


class TensorFlowLauncher(Launcher):
    """Start every task by itself; each listens at a port that its own host had free.

    ``TF_CONFIG`` is that of
    https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable
    """

    name = "tensorflow"

    def place(self, spec: JobSpec, offers: Sequence[Offer], attempt: int) -> Plan:
        """Return where each task of the cluster goes.

        :raises PlanError: hosts have not enough slots or ports for it
        """
        return assembled(spec, dealt(spec, _cluster(spec), offers), attempt)

    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return a process for each task of the node."""
        cluster = _cluster(plan.spec)
        hosts = tuple(dict.fromkeys(other.address for other in plan.nodes))
        return tuple(
            Process(
                name=f"rank-{rank.rank}",
                rank=rank.rank,
                argv=program_argv(plan.spec),
                env=_environment(plan, node, rank),
                defaults=interface_environment(plan, node),
                no_proxy=hosts if cluster.bypass_proxies else (),
            )
            for rank in node.ranks
        )


def tf_config(plan: Plan, task: Task) -> dict[str, Any]:
    """Return what a task must know: its cluster, which is the same for all, and its place there.

    Roles that nobody has are left out, since TensorFlow takes an empty list for a mistake.
    """
    tasks = _cluster(plan.spec).tasks()
    cluster: defaultdict[str, list[str]] = defaultdict(list)
    placed = {rank.rank: (rank, node) for node in plan.nodes for rank in node.ranks}
    for number, other in enumerate(tasks):
        rank, node = placed[number]
        if rank.port is not None:  # evaluators are no part of the cluster
            cluster[other.role].append(socket_address(node.address, rank.port))
    return {
        "cluster": dict(cluster),
        "task": {"type": task.role, "index": task.index},
        "environment": "cloud",
    }


def _environment(plan: Plan, node: Node, rank: Rank) -> dict[str, str]:
    task = _cluster(plan.spec).tasks()[rank.rank]
    # A task takes all the memory of every GPU that it sees, and would leave none to its neighbours.
    gpus = gpu_environment(rank.slots) or {"CUDA_VISIBLE_DEVICES": _NO_GPU} if node.gpus else {}
    return {
        **job_environment(plan, node),
        **gpus,
        **user_environment(plan.spec, node),
        "TF_CONFIG": json.dumps(tf_config(plan, task)),
        "DT_RANK": str(rank.rank),
        "DT_ROLE": task.role,
    }


def _cluster(spec: JobSpec) -> Cluster:
    assert spec.cluster is not None  # the operator of this launcher always has one
    return spec.cluster
