"""A Ray cluster of the job's own: a node of it on each host, and one driver on the head."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from distributed_training.environment import (
    default_environment,
    gpu_environment,
    job_environment,
    user_environment,
)
from distributed_training.launchers.base import Launcher, program_argv, socket_address
from distributed_training.plan import Plan, Process, Rank, RayOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_training.plan import JobSpec, Node, Offer

DRIVER = 0  # the rank whose end is the job's
# Ray takes these from the kernel, so that clusters which share a host never meet.
_ANY_PORT = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # hosts need no way out
    "RAY_DEDUP_LOGS": "0",  # each line that a worker prints is shown
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # when it is asked to end, the job is over
}


class RayLauncher(Launcher):
    """Start Ray on all hosts, and the user's program on the head when all have joined.

    The nodes of Ray are ranks that serve the driver: they are let go when it has ended, and one
    that ends before is a failure. Their agents end all that belongs to them, so that nothing has to
    look for Ray's processes by name, as ``ray stop`` does.
    """

    name = "ray"
    reserved = ("RAY_ADDRESS",)
    packages = ("ray",)

    def place(self, spec: JobSpec, offers: Sequence[Offer], attempt: int) -> Plan:
        """Return the plan: a node of Ray on each host has all of the slots there.

        :raises PlanError: what is wanted does not fit what is offered
        """
        plan = super().place(spec, offers, attempt)
        head = next(offer for offer in offers if offer.host.name == plan.head.host.name)
        client = next((port for port in head.ports if port != plan.master_port), None)
        nodes = [
            dataclasses.replace(node, ranks=_ranks(node, client if node is plan.head else None))
            for node in plan.nodes
        ]
        return dataclasses.replace(plan, nodes=tuple(nodes))

    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return Ray's node, and on the head the driver."""
        hosts = tuple(dict.fromkeys(other.address for other in plan.nodes))
        patience = {
            "RAY_NUM_REDIS_GET_RETRIES": f"{plan.spec.start_timeout:.0f}"
        }  # seconds, almost
        defaults = {**default_environment(plan, node), **_DEFAULTS, **patience}
        defaults.pop("OMP_NUM_THREADS", None)  # Ray sets it for each worker by the CPUs that it has
        return tuple(
            Process(
                name=f"rank-{rank.rank}",
                rank=rank.rank,
                argv=_driver(plan) if rank.rank == DRIVER else _ray_node(plan, node, rank),
                env=_environment(plan, node, rank),
                defaults=defaults,
                no_proxy=hosts,
            )
            for rank in node.ranks
        )


def _ranks(node: Node, client_port: int | None) -> tuple[Rank, ...]:
    """Return the ranks of a node; the driver is number 0, and those of Ray follow.

    :param client_port: at which the head listens beside the port where nodes meet
    """
    number = node.node_rank + 1
    is_head = node.node_rank == 0
    role = "Ray head" if is_head else f"Ray node {node.node_rank}"
    ray = Rank(number, 0, node.slots, role, port=client_port, serves=0.0)
    return (Rank(DRIVER, 1, (), "driver"), ray) if is_head else (ray,)


def _ray_node(plan: Plan, node: Node, rank: Rank) -> tuple[str, ...]:
    head = (plan.head.address, plan.master_port)
    folder = _short_folder(plan)
    told = {
        "folder": folder,
        "wait_for": None if node is plan.head else head,
        "client_port": rank.port,
        "start_timeout": plan.spec.start_timeout,
    }
    place = (
        ("--head", f"--port={plan.master_port}", "--include-dashboard=false")
        if node is plan.head
        else (f"--address={socket_address(*head)}",)
    )
    options = _options(plan.spec)
    memory = options.object_store_memory
    return (
        *_through_agent(plan, node, "node", told), *place, "--block",
        f"--node-ip-address={node.address}", f"--temp-dir={folder}", *_ANY_PORT,
        f"--num-cpus={options.num_cpus or _cpus(plan.spec, node)}", f"--num-gpus={len(node.gpus)}",
        *(() if memory is None else (f"--object-store-memory={memory}",)),
    )  # fmt: skip


def _driver(plan: Plan) -> tuple[str, ...]:
    told = {
        "head": (plan.head.address, plan.master_port),
        "nodes": {node.host.name: node.address for node in plan.nodes},
        "start_timeout": plan.spec.start_timeout,
    }
    return (*_through_agent(plan, plan.head, "driver", told), *program_argv(plan.spec))


def _through_agent(plan: Plan, node: Node, kind: str, told: dict[str, Any]) -> tuple[str, ...]:
    return (plan.spec.python, f"{node.folder}/agent.pyz", "ray", kind, json.dumps(told))


def _cpus(spec: JobSpec, node: Node) -> int:
    """Return the CPUs that Ray may deal out: beside GPUs, all that there are."""
    return node.cpus if node.gpus else spec.nproc_per_node or len(node.slots)


def _short_folder(plan: Plan) -> str:
    """Return a path on all hosts that no other job has: the kernel allows a socket 107 bytes."""
    mark = hashlib.sha256(f"{plan.spec.job_id}/{plan.attempt}".encode()).hexdigest()[:16]
    return f"/tmp/dt-ray-{mark}"


def _environment(plan: Plan, node: Node, rank: Rank) -> dict[str, str]:
    return {
        **job_environment(plan, node),
        **gpu_environment(node.slots),
        **user_environment(plan.spec, node),
        "RAY_ADDRESS": socket_address(plan.head.address, plan.master_port),
        "DT_RANK": str(rank.rank),
        "DT_ROLE": rank.role,
    }


def _options(spec: JobSpec) -> RayOptions:
    return spec.ray or RayOptions()
