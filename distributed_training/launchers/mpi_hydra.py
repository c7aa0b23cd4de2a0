"""MPICH and Intel MPI, whose mpirun is Hydra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_training.launchers.mpi_base import (
    Implementation,
    between_hosts,
    is_said,
    keeps_to_interface,
    mpi_address,
    relay,
)

if TYPE_CHECKING:
    from distributed_training.plan import Node, Plan


class Hydra(Implementation):
    """What MPICH and Intel MPI share."""

    def defaults(self, plan: Plan, node: Node) -> dict[str, str]:
        """Return the variables of UCX and of libfabric: either may carry the messages."""
        env = super().defaults(plan, node)
        if keeps_to_interface(plan, node):
            env["FI_TCP_IFACE"] = str(node.interface)
        if len(plan.nodes) > 1 and plan.spec.interconnect == "tcp":
            env["FI_PROVIDER"] = "tcp"
        return env


class Mpich(Hydra):
    """MPICH: ranks go to the hosts in the order of their list, so many to each."""

    def options(self, plan: Plan) -> tuple[str, ...]:
        """Return the list of hosts, and the address at which the head is told to the others."""
        hosts = (f"{mpi_address(plan, node)}:{len(node.ranks)}" for node in plan.nodes)
        return (
            "-launcher", "ssh", "-launcher-exec", relay(plan),
            "-localhost", mpi_address(plan, plan.head),
            "-hosts", ",".join(hosts),
        )  # fmt: skip

    def place(self, plan: Plan, node: Node) -> tuple[str, ...]:
        """Return how many of the ranks are this host's."""
        return ("-n", str(len(node.ranks)), "-wdir", node.work)


class IntelMpi(Hydra):
    """Intel MPI. Its daemons find the head by the address of an interface, else by its name."""

    def options(self, plan: Plan) -> tuple[str, ...]:
        """Return how daemons are started, and the head's interface."""
        ours = between_hosts(plan, plan.head) and not is_said(plan, "-iface", "HYDRA_IFACE")
        iface = ("-iface", str(plan.head.interface)) if ours else ()
        # Daemons would start others where there are more than 16: only the head's are relayed.
        branches = str(max(2, len(plan.nodes)))
        start = ("-bootstrap", "ssh", "-bootstrap-exec", relay(plan), "-branch-count", branches)
        return (*start, *iface)

    def place(self, plan: Plan, node: Node) -> tuple[str, ...]:
        """Return a context of its own for each node."""
        host = mpi_address(plan, node)
        return ("-host", host, "-n", str(len(node.ranks)), "-wdir", node.work)

    def environment(self, plan: Plan, node: Node) -> dict[str, str]:
        """Bind ranks to no cores unless the user says so: two jobs would share the same ones."""
        ours = {} if is_said(plan, "I_MPI_PIN", "-bind") else {"I_MPI_PIN": "off"}
        return {**ours, **super().environment(plan, node)}
