"""One process per rank, each told by JAX's own variables where it stands among the others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from distributed_training.launchers.base import socket_address
from distributed_training.launchers.process import ProcessLauncher

if TYPE_CHECKING:
    from distributed_training.plan import Node, Plan, Process, Rank


class JaxLauncher(ProcessLauncher):
    """Start ranks one by one, so that ``jax.distributed.initialize()`` needs no argument.

    JAX itself reads the coordinator's address and the local devices; the numbers, which it takes
    from clusters that it knows alone, are handed to it by our ``sitecustomize``.
    """

    name = "jax"
    needs_site = True
    reserved = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return a process for each rank of the node."""
        # gRPC would take a proxy of the environment to reach the coordinator, even on its own host.
        hosts = tuple(dict.fromkeys(other.address for other in plan.nodes))
        return tuple(
            dataclasses.replace(
                process,
                env={**_devices(node, rank), **process.env, **_place(plan, rank)},
                no_proxy=hosts,
            )
            for rank, process in zip(node.ranks, super().processes(plan, node), strict=True)
        )


def _place(plan: Plan, rank: Rank) -> dict[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": socket_address(plan.head.address, plan.master_port),
        "JAX_NUM_PROCESSES": str(plan.world_size),
        "JAX_PROCESS_ID": str(rank.rank),
    }


def _devices(node: Node, rank: Rank) -> dict[str, str]:
    """Return which of the visible GPUs is the rank's own: JAX would take all of them."""
    return {"JAX_LOCAL_DEVICE_IDS": str(node.slots.index(rank.slot))} if node.gpus else {}
