"""What every MPI has in common, as far as starting its ranks goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from distributed_training.environment import user_environment
from distributed_training.mpirun import MpiOptions

if TYPE_CHECKING:
    from distributed_training.plan import JobSpec, Node, Plan

# What an mpirun and its daemons read themselves: they are given nothing else of what users set, as
# some of them hand their whole environment on, in command lines and to all hosts.
READ_BY_MPI = (
    "OMPI_*", "OPAL_*", "PRTE_*", "PMIX_*", "I_MPI_*", "HYDRA_*", "MPIEXEC_*", "MPIR_*", "MPICH_*",
    "UCX_*", "FI_*", "HWLOC_*", "PATH", "LD_LIBRARY_PATH", "TMPDIR",
)  # fmt: skip


class Implementation(ABC):
    """One MPI: how its mpirun is told where ranks go, and what stands between hosts."""

    @abstractmethod
    def options(self, plan: Plan) -> tuple[str, ...]:
        """Return the options that hold for the whole job."""

    @abstractmethod
    def place(self, plan: Plan, node: Node) -> tuple[str, ...]:
        """Return the options that put so many ranks on one host."""

    def environment(self, plan: Plan, node: Node) -> dict[str, str]:
        """Return the variables of mpirun on the head, and of its daemon on any other node."""
        return {
            name: value
            for name, value in user_environment(plan.spec, node).items()
            if any(fnmatchcase(name, pattern) for pattern in READ_BY_MPI)
        }

    def defaults(self, plan: Plan, node: Node) -> dict[str, str]:
        """Return what keeps a rank's messages on the interface between the hosts."""
        if not keeps_to_interface(plan, node):
            return {}
        return {"UCX_NET_DEVICES": str(node.interface)}


def options_of(spec: JobSpec) -> MpiOptions:
    """Return what the user asks of mpirun."""
    return spec.mpi or MpiOptions()


def between_hosts(plan: Plan, node: Node) -> bool:
    """Return whether it is known over which interface a node reaches the others."""
    return len(plan.nodes) > 1 and node.interface is not None


def keeps_to_interface(plan: Plan, node: Node) -> bool:
    """Return whether UCX and libfabric are not to choose the network for themselves."""
    sockets = not node.infiniband or plan.spec.interconnect == "tcp"
    return sockets and between_hosts(plan, node)


def interfaces(plan: Plan) -> list[str]:
    """Return the names of the interfaces between the hosts, none if one of them is unknown."""
    names = [node.interface for node in plan.nodes if node.interface]
    return list(dict.fromkeys(names)) if len(names) == len(plan.nodes) > 1 else []


def is_said(plan: Plan, *words: str) -> bool:
    """Return whether the user has set something by an argument or a variable of one of the names.

    :param words: parts of such names, as in ``btl_tcp_if_`` for ``OMPI_MCA_btl_tcp_if_exclude``
    """
    spec = plan.spec
    names = {*spec.env, *(name for env in spec.host_env.values() for name in env)}
    return any(word in said for said in (*options_of(spec).arguments, *names) for word in words)


def mpi_address(plan: Plan, node: Node) -> str:
    """Return what an mpirun is to call a host: never a name, which others may not resolve."""
    return node.address if len(plan.nodes) > 1 else "localhost"


def relay(plan: Plan) -> str:
    """Return the path of what an mpirun executes in the place of ssh."""
    return f"{plan.head.folder}/relay"
