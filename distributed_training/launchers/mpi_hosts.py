"""Which mpirun the hosts of a job have, all of them the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed_training.errors import PlanError
from distributed_training.mpirun import FAMILIES, TITLES, MpiOptions, Mpirun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distributed_training.plan import Node, Offer


def mpirun_of(options: MpiOptions, offers: Sequence[Offer]) -> Mpirun:
    """Return the mpirun of hosts.

    :raises PlanError: one has none, another than was asked for, or they differ; all are listed
    """
    found = {offer.host.name: _told(offer.facts.get("mpirun") or {}) for offer in offers}
    lacking = {host: why for host, why in found.items() if isinstance(why, str)}
    if lacking:
        raise PlanError(
            f"no mpirun can be used on {_listed(lacking)}; install the same MPI there, or name its "
            "mpirun with mpirun=. What setup= installs comes too late for the plan",
            host=next(iter(lacking)),
        )
    there = {host: each for host, each in found.items() if isinstance(each, Mpirun)}
    first = next(iter(there.values()))
    if len(set(there.values())) > 1:
        raise PlanError(
            f"the hosts have different MPIs: {_listed(there)}; one mpirun starts its like on all "
            "hosts, from the same path: name it with mpirun="
        )
    if options.family not in (None, first.family):
        raise PlanError(
            f"mpi={options.family!r}, but the hosts have {first}; leave mpi= out, or name the "
            f"mpirun of {TITLES[options.family]} with mpirun="
        )
    return first


def _told(answer: Mapping[str, Any]) -> Mpirun | str:
    """Return what a host has, or why it has nothing to use."""
    family, version = answer.get("family"), str(answer.get("version") or "")
    if family not in FAMILIES or not version[:1].isdigit():
        return str(answer.get("why") or "it was not asked")
    return Mpirun(answer["program"], family, version)


def check_addresses(nodes: Sequence[Node]) -> None:
    """Refuse two hosts with one address, which an mpirun takes for one, and IPv6.

    :raises PlanError: it names the hosts
    """
    by_address: dict[str, str] = {}
    for node in nodes:
        if ":" in node.address and len(nodes) > 1:
            raise PlanError(
                f"{node.host.name}: an mpirun is told hosts as `address:slots`, and its address is "
                f"{node.address}; give it an IPv4 address or a name with address=",
                host=node.host.name,
            )
        other = by_address.setdefault(node.address, node.host.name)
        if other != node.host.name:
            raise PlanError(
                f"{other} and {node.host.name} have the same address {node.address}, by which "
                "mpirun tells hosts apart; give each its own with address=, or select one of them",
                host=node.host.name,
            )


def check_user(options: MpiOptions, offers: Sequence[Offer]) -> None:
    """Refuse root, under which a mistake of a program can ruin a host.

    :raises PlanError: it names the hosts and what to set
    """
    roots = [offer.host.name for offer in offers if offer.facts.get("uid") == 0]
    if roots and not options.allow_run_as_root:
        raise PlanError(
            f"the user on {', '.join(roots)} is root, as whom no mpirun is meant to run; log in "
            "as another user, or set allow_run_as_root=True",
            host=roots[0],
        )


def check_folders(mpirun: Mpirun, nodes: Sequence[Node]) -> None:
    """Refuse a blank in the path of the relay, at which Open MPI would cut it.

    :raises PlanError: it names the folder
    """
    folder = nodes[0].folder
    if mpirun.family == "openmpi" and len(folder.split()) > 1:
        raise PlanError(
            f"{nodes[0].host.name}: Open MPI cannot have a blank in {folder}; set work_dir in the "
            "fleet to a folder without",
            host=nodes[0].host.name,
        )


def _listed(what: Mapping[str, object]) -> str:
    return "; ".join(f"{host}: {each}" for host, each in what.items())
