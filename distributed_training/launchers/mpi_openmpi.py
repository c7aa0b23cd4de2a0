"""Open MPI 4, and Open MPI 5 with its runtime PRRTE: the same words with other names."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from distributed_training.launchers.mpi_base import (
    Implementation,
    between_hosts,
    interfaces,
    is_said,
    mpi_address,
    options_of,
    relay,
)

if TYPE_CHECKING:
    from distributed_training.plan import Interconnect, Node, Plan

ROOT = ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")  # it wants to hear it twice

# How messages go between hosts. Its own transports know of InfiniBand only through UCX, and without
# it fall back to TCP in silence.
TRANSPORTS: dict[Interconnect, dict[str, str]] = {
    "auto": {},
    "tcp": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib,uct,ofi,usnic"},
    "infiniband": {"OMPI_MCA_pml": "ucx"},
}


class OpenMpi(Implementation):
    """What Open MPI 4 and 5 share.

    Daemons never start others (``no_tree_spawn``): only what runs on the head can be relayed.
    """

    option: str  # that begins a parameter of the runtime
    root_prefixes: tuple[str, ...]

    def options(self, plan: Plan) -> tuple[str, ...]:
        """Return the runtime's parameters; ranks are bound to no cores unless the user says so.

        Two jobs that share a host would bind their ranks to the same cores.
        """
        bound = is_said(plan, "bind-to", "map-by", "cpu-set", "cpu-list", "cpus-per-", "rankfile")
        return (*(() if bound else ("--bind-to", "none")), *self.parameters(plan))

    def parameters(self, plan: Plan) -> tuple[str, ...]:
        """Return the runtime's parameters as options."""
        found = {**self.remote_start(plan), **self.network(plan)}
        return tuple(word for name, value in found.items() for word in (self.option, name, value))

    @abstractmethod
    def remote_start(self, plan: Plan) -> dict[str, str]:
        """Return the parameters that have daemons started by us."""

    @abstractmethod
    def network(self, plan: Plan) -> dict[str, str]:
        """Return the parameters that keep daemons on the network between the hosts."""

    def place(self, plan: Plan, node: Node) -> tuple[str, ...]:
        """Return a context of its own for each node, with its folder."""
        count = len(node.ranks)
        host = f"{mpi_address(plan, node)}:{count}"
        return ("--host", host, "-np", str(count), "-wdir", node.work)

    def environment(self, plan: Plan, node: Node) -> dict[str, str]:
        """Allow root on every host, if it was allowed."""
        allowed = options_of(plan.spec).allow_run_as_root
        names = [f"{prefix}_{name}" for prefix in self.root_prefixes for name in ROOT]
        return {**super().environment(plan, node), **dict.fromkeys(names if allowed else (), "1")}

    def defaults(self, plan: Plan, node: Node) -> dict[str, str]:
        """Return the variables of a rank; one that shares its core lets others have it."""
        env = super().defaults(plan, node)
        if between_hosts(plan, node) and not is_said(plan, "btl_tcp_if_"):
            env["OMPI_MCA_btl_tcp_if_include"] = str(node.interface)
        if len(plan.nodes) > 1 and not is_said(plan, "pml"):
            env |= TRANSPORTS[plan.spec.interconnect]
        if len(node.ranks) > node.cpus:
            env["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return env


class OpenMpi4(OpenMpi):
    """Open MPI up to 4.1: ORTE.

    Without ``leave_session_attached`` a daemon hides from whoever started it.
    """

    option = "--mca"
    root_prefixes = ("OMPI",)

    def remote_start(self, plan: Plan) -> dict[str, str]:
        """Return the parameters that have daemons started by us."""
        return {
            # A path alone would have to exist on all hosts.
            "plm_rsh_agent": f"sh {relay(plan)}",
            "plm_rsh_no_tree_spawn": "1",
            "orte_leave_session_attached": "1",
        }

    def network(self, plan: Plan) -> dict[str, str]:
        """Name the interfaces of all hosts: a name that a host does not have is passed over."""
        names = interfaces(plan)
        if not names or is_said(plan, "oob_tcp_if_"):
            return {}
        return {"oob_tcp_if_include": ",".join(names)}


class OpenMpi5(OpenMpi):
    """Open MPI 5 and later: PRRTE."""

    option = "--prtemca"
    root_prefixes = ("OMPI", "PRTE")

    def remote_start(self, plan: Plan) -> dict[str, str]:
        """Return the parameters that have daemons started by us."""
        return {"plm_ssh_agent": f"sh {relay(plan)}", "plm_ssh_no_tree_spawn": "1"}

    def network(self, plan: Plan) -> dict[str, str]:
        """Name the interface if it has the same name everywhere: others end a daemon."""
        names = interfaces(plan)
        if len(names) != 1 or is_said(plan, "prte_if_", "oob_tcp_if_"):
            return {}
        return {"prte_if_include": names[0]}
