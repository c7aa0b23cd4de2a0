"""One ``mpirun`` on the head, which starts the ranks of all nodes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from distributed_training.environment import default_environment, rank_environment
from distributed_training.launchers.base import Launcher, program_argv
from distributed_training.launchers.mpi_arguments import check_arguments, check_variables
from distributed_training.launchers.mpi_base import Implementation, options_of
from distributed_training.launchers.mpi_hosts import (
    check_addresses,
    check_folders,
    check_user,
    mpirun_of,
)
from distributed_training.launchers.mpi_hydra import IntelMpi, Mpich
from distributed_training.launchers.mpi_openmpi import OpenMpi4, OpenMpi5
from distributed_training.plan import Node, Plan, Process, Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_training.mpirun import Mpirun
    from distributed_training.plan import JobSpec, Offer

FIRST_PRRTE = 5  # the major version of Open MPI that has a runtime of another name


class MpiLauncher(Launcher):
    """Start mpirun on the head as its user would.

    It has a context of its own for each node, so that folders may differ. What it starts is the
    agent's ``rank`` command, which comes to the agent of its own host for all the rest: so neither
    the program nor any value of a variable passes through mpirun. What mpirun would have started
    over SSH is relayed through our own connections.
    """

    name = "mpi"

    def place(self, spec: JobSpec, offers: Sequence[Offer], attempt: int) -> Plan:
        """Return which rank runs where, and by which mpirun.

        :raises PlanError: hosts have no mpirun in common, or it cannot be run as wanted
        """
        check_arguments(spec)
        check_variables(spec)
        plan = super().place(spec, offers, attempt)
        by_name = {offer.host.name: offer for offer in offers}
        chosen = [by_name[node.host.name] for node in plan.nodes]
        options = options_of(spec)
        mpirun = mpirun_of(options, chosen)
        check_user(options, chosen)
        check_addresses(plan.nodes)
        check_folders(mpirun, plan.nodes)
        return dataclasses.replace(plan, mpirun=mpirun)

    def processes(self, plan: Plan, node: Node) -> tuple[Process, ...]:
        """Return mpirun, or a daemon that it may want here, and the ranks that it starts."""
        assert plan.mpirun is not None  # placed so
        mpi = implementation(plan.mpirun)
        first = launcher(plan, mpi) if node is plan.head else daemon(plan, node, mpi)
        return (first, *(rank_process(plan, node, rank, mpi) for rank in node.ranks))


def implementation(mpirun: Mpirun) -> Implementation:
    """Return what speaks the language of an mpirun."""
    if mpirun.family == "mpich":
        return Mpich()
    if mpirun.family == "intelmpi":
        return IntelMpi()
    return OpenMpi4() if mpirun.major < FIRST_PRRTE else OpenMpi5()


def launcher(plan: Plan, mpi: Implementation) -> Process:
    """Return mpirun itself."""
    return Process(
        name="launcher",
        rank=None,
        argv=mpirun_command(plan, mpi),
        env=mpi.environment(plan, plan.head),
        defaults={},
    )


def daemon(plan: Plan, node: Node, mpi: Implementation) -> Process:
    """Return what mpirun may want to run on another node; it brings the command itself."""
    return Process(
        name="daemon",
        rank=None,
        argv=("sh", "-c"),
        env=mpi.environment(plan, node),
        defaults={},
        started_by="relay",
    )


def mpirun_command(plan: Plan, mpi: Implementation) -> tuple[str, ...]:
    """Return the whole command line: our options, the user's, and a context for each node."""
    assert plan.mpirun is not None
    words = [plan.mpirun.program, *mpi.options(plan), *options_of(plan.spec).arguments]
    for node in plan.nodes:
        words += () if node is plan.head else (":",)
        words += (*mpi.place(plan, node), "python3", "-I", f"{node.folder}/agent.pyz", "rank")
    return tuple(words)


def rank_process(plan: Plan, node: Node, rank: Rank, mpi: Implementation) -> Process:
    """Return what the rank command executes, once mpirun has started it."""
    return Process(
        name=f"rank-{rank.rank}",
        rank=rank.rank,
        argv=program_argv(plan.spec),
        env={**places(plan, node, rank), **rank_environment(plan, node, rank)},
        defaults={**mpi.defaults(plan, node), **default_environment(plan, node)},
        with_mpi4py=argv_of_mpi4py(plan.spec),
        started_by="launcher",
    )


def places(plan: Plan, node: Node, rank: Rank) -> dict[str, str]:
    """Return what scripts that run under an MPI look for beside the torch set.

    The ``CROSS_*`` pair is Horovod's: the rank among those with the same local rank elsewhere.
    Those of Azure are read by scripts that were written for its clusters.
    """
    alike = [other for other in plan.nodes if len(other.ranks) > rank.local_rank]
    return {
        "CROSS_RANK": str(alike.index(node)),
        "CROSS_SIZE": str(len(alike)),
        "AZ_BATCH_MASTER_NODE": f"{plan.head.address}:{plan.master_port}",
        "AZ_BATCHAI_MPI_MASTER_NODE": plan.head.address,
    }


def argv_of_mpi4py(spec: JobSpec) -> tuple[str, ...] | None:
    """Return the argument vector with which an exception in a rank aborts all others.

    Without ``-m mpi4py`` the rank would wait for them at its end, and they for it.
    """
    if spec.program.kind == "command":
        return None
    python, *rest = program_argv(spec)
    return (python, "-m", "mpi4py", *rest)
