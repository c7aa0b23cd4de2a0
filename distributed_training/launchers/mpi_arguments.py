"""Arguments that a user may not give to mpirun, since the plan does."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from distributed_training.errors import PlanError
from distributed_training.launchers.mpi_base import options_of

if TYPE_CHECKING:
    from distributed_training.plan import JobSpec

_COUNTS = "set nnodes= and nproc_per_node= instead"
_HOSTS = "set hosts=, or slots= in the fleet, instead"
_ENV = "set env= instead, whose values arrive byte for byte on all hosts"
_START = "take it out: daemons are started through our own connections"

# By name without dashes.
_REFUSED = {
    **dict.fromkeys(("n", "np", "c", "N", "npernode", "ppn", "perhost"), _COUNTS),
    **dict.fromkeys(("H", "host", "hosts", "hostfile", "machinefile", "machine", "f"), _HOSTS),
    **dict.fromkeys(("default-hostfile", "add-host", "add-hostfile", "hostlist"), _HOSTS),
    **dict.fromkeys(("x", "env", "genv", "envlist", "genvlist", "envnone", "genvnone"), _ENV),
    **dict.fromkeys(("envall", "genvall", "envuser", "genvuser"), _ENV),
    **dict.fromkeys(("launcher", "launcher-exec", "bootstrap", "bootstrap-exec"), _START),
    "branch-count": _START,
    **dict.fromkeys(("rsh", "prefix", "noprefix", "app", "configfile"), _START),
    **dict.fromkeys(("wdir", "wd", "path"), "take it out: it is the folder of the source"),
    "allow-run-as-root": "set allow_run_as_root=True instead",
}
_OURS = ("plm_*", "plm")  # parameters of Open MPI

# What each rank is told by mpirun itself.
_RANKS_OWN = (
    "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE", "PMI_*", "PMIX_RANK", "PMIX_NAMESPACE",
    "PMIX_SERVER_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
)  # fmt: skip


def check_arguments(spec: JobSpec) -> None:
    """Refuse what contradicts the plan, and a program that is not given where it belongs.

    :raises PlanError: it says which argument, and what to set instead
    """
    arguments = options_of(spec).arguments
    if arguments and not arguments[0].startswith("-"):
        raise PlanError(
            f"mpirun_arguments begin with {arguments[0]!r}, which mpirun would take for the "
            "program; that is the one of script=, module= or command="
        )
    for word in arguments:
        name = word.lstrip("-").partition("=")[0]
        why = _REFUSED.get(name) if word.startswith("-") else None
        if any(fnmatchcase(name, pattern) for pattern in _OURS):
            why = _START
        if word == ":":
            why = "take it out: the program of the ranks is that of script=, module= or command="
        if why:
            raise PlanError(f"mpirun_arguments: {word} is the plan's to say; {why}")


def check_variables(spec: JobSpec) -> None:
    """Refuse variables by which mpirun tells a rank who it is.

    :raises PlanError: it says which
    """
    for where, env in {"env": spec.env, **spec.host_env}.items():
        for name in env:
            if any(fnmatchcase(name, pattern) for pattern in _RANKS_OWN):
                raise PlanError(f"{where} sets {name}, which mpirun tells each rank: take it out")
