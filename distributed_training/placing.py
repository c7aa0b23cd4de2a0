"""Where every rank of a job goes: a pure function of what is wanted and what the hosts offer."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from distributed_training.errors import HostWithheld, PlanError
from distributed_training.plan import Node, Plan, Rank, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distributed_training.plan import JobSpec, Offer


@dataclass(frozen=True, slots=True)
class Share:
    """What one host is given of a job: its slots, and the ranks that run there."""

    offer: Offer
    slots: tuple[Slot, ...]
    ranks: tuple[Rank, ...]


def place(spec: JobSpec, offers: Sequence[Offer], attempt: int = 0) -> Plan:
    """Return the plan of ``spec`` on ``offers``, without the processes that a launcher adds.

    Nodes keep the order of the offers, ranks are numbered through them. Where there are more
    hosts or slots than asked for, free ones are taken first. An elastic job takes all that are
    free, up to its most; its nodes are in the order of their addresses, as torchrun numbers them.

    :raises PlanError: the request does not fit what is offered; the message has the numbers.
    """
    taken: defaultdict[str, set[str]] = defaultdict(set)
    shares: list[Share] = []
    chosen = _hosts(spec, offers)
    for offer in chosen:
        slots, per_rank = _slots(spec, offer, taken[offer.machine_id])
        taken[offer.machine_id].update(slot.name for slot in slots)
        first = sum(len(share.ranks) for share in shares)
        ranks = tuple(Rank(first + n, n, (slot,)) for n, slot in enumerate(per_rank))
        shares.append(Share(offer, slots, ranks))
    plan = assembled(spec, shares, attempt)
    return dataclasses.replace(plan, left_out=tuple(_left_out(spec, offers, chosen)))


def assembled(spec: JobSpec, shares: Sequence[Share], attempt: int) -> Plan:
    """Return the plan in which each host has its share; the first one is the head."""
    chosen = [share.offer for share in shares]
    nodes = [
        Node(
            node_rank=node_rank,
            host=share.offer.host,
            address=share.offer.address,
            interface=share.offer.interface,
            folder=f"{share.offer.root}/jobs/{spec.job_id}/{attempt}/{node_rank}",
            ranks=share.ranks,
            slots=share.slots,
            cpus=share.offer.cpus,
            infiniband=bool(share.offer.facts.get("infiniband")),
            checkpoint_dir=_at_home(spec.checkpoint_dir, share.offer.home),
        )
        for node_rank, share in enumerate(shares)
    ]
    _check_addresses(nodes, chosen)
    if spec.min_nodes is not None:
        _check_apart(nodes)
    _check_backend(spec, nodes)
    port = nodes[0].ranks[0].port or spec.master_port or _free_port(chosen[0])
    return Plan(spec, attempt, tuple(nodes), port, *_resume_from(spec, chosen))


def _at_home(folder: str | None, home: str) -> str | None:
    """Return a folder on a host, where a relative path counts from the user's home."""
    return folder and str(PurePosixPath(home, folder.removeprefix("~/")))


def _resume_from(spec: JobSpec, chosen: Sequence[Offer]) -> tuple[str | None, tuple[str, ...]]:
    """Return the newest checkpoint that any of the hosts has whole, and what is not."""
    if not spec.resumes:
        return None, ()
    saved = [offer.checkpoint for offer in chosen if offer.checkpoint]
    newest = max(saved, key=lambda each: (each["step"] or 0, each["time"]), default=None)
    passed_over = {  # once, where hosts share the folder
        f"{each['path']}: {each['why']}": None
        for offer in chosen
        for each in offer.checkpoints_passed_over
    }
    return newest["path"] if newest else None, tuple(passed_over)


def _hosts(spec: JobSpec, offers: Sequence[Offer]) -> list[Offer]:
    most = len(offers) if spec.nnodes is None else spec.nnodes
    wanted = spec.min_nodes or most
    if not 1 <= wanted <= len(offers):
        names = ", ".join(offer.host.name for offer in offers) or "none"
        raise PlanError(
            f"nnodes={wanted}, but {len(offers)} hosts are selected ({names}): "
            "ask for as many nodes as there are hosts or fewer, or add hosts to the fleet"
        )
    usable = [n for n, offer in enumerate(offers) if not offer.withheld(spec.quarantine)]
    if len(usable) < wanted:
        raise _withheld(spec, offers, wanted, len(usable))
    free_first = sorted(usable, key=lambda n: _busy_slots(spec, offers[n]))
    if spec.min_nodes is None:
        return [offers[n] for n in sorted(free_first[:wanted])]
    free = sum(not _busy_slots(spec, offers[n]) for n in usable)
    taken = [offers[n] for n in free_first[: min(most, max(wanted, free))]]
    return sorted(taken, key=lambda offer: offer.address)


def _left_out(spec: JobSpec, offers: Sequence[Offer], chosen: Sequence[Offer]) -> Iterator[str]:
    """Yield why an elastic job, which could use more hosts, does without some."""
    if spec.min_nodes is None or len(chosen) == spec.nnodes:
        return
    for offer in offers:
        if offer not in chosen:
            busy = f"in use are {_busy_slots(spec, offer)} of the slots that it would take"
            yield f"{offer.host.name}: {offer.withheld(spec.quarantine) or busy}"


def _withheld(spec: JobSpec, offers: Sequence[Offer], wanted: int, left: int) -> HostWithheld:
    reasons = {offer.host.name: offer.withheld(spec.quarantine) for offer in offers}
    told = [f"{name} is {why}" for name, why in reasons.items() if why]
    names = " ".join(name for name, why in reasons.items() if why)
    without = f", or go on without with nnodes={left}" if left else ""
    return HostWithheld(
        f"the job needs {wanted} of {len(offers)} hosts, but {'; '.join(told)}. Give back with "
        f"`python -m distributed_training undrain {names}`{without}",
        host=names.split(" ")[0],
    )


def _busy_slots(spec: JobSpec, offer: Offer) -> int:
    """Return how many slots the job would have to wait for on this host."""
    slots = offer.slots()
    free = sum(slot.name not in offer.busy for slot in slots)
    return max(0, min(spec.nproc_per_node or len(slots), len(slots)) - free)


def _slots(
    spec: JobSpec, offer: Offer, taken: set[str]
) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """Return the slots that a node holds, and the slot of each of its ranks."""
    every = apart(offer.slots(), taken)
    count = len(every) if spec.nproc_per_node is None else spec.nproc_per_node
    if not every:
        raise PlanError(
            f"{offer.host.name}: its GPUs are in this job already under another host's name",
            host=offer.host.name,
        )
    if count > len(every) and not spec.oversubscribe:
        raise PlanError(
            f"{offer.host.name}: nproc_per_node={count}, but it has {len(every)} "
            f"slot{'s' * (len(every) > 1)} ({', '.join(slot.name for slot in every)}); ask for "
            "fewer, raise `slots=` in the fleet, or set oversubscribe=True to run several ranks "
            "on a slot",
            host=offer.host.name,
        )
    free_first = sorted(range(len(every)), key=lambda n: every[n].name in offer.busy)
    held = tuple(every[n] for n in sorted(free_first[:count]))
    return held, tuple(held[n % len(held)] for n in range(count))


def apart(slots: tuple[Slot, ...], taken: set[str]) -> tuple[Slot, ...]:
    """Return slots that no other node of the job has, for two hosts that are one machine.

    CPU places are renumbered, since each host brings its own; a GPU is there only once.
    """
    if not taken:
        return slots
    if any(slot.gpu for slot in slots):
        return tuple(slot for slot in slots if slot.name not in taken)
    return tuple(Slot(f"cpu-{len(taken) + n}") for n in range(len(slots)))


def _check_addresses(nodes: Sequence[Node], offers: Sequence[Offer]) -> None:
    """Refuse a loopback address that hosts on other machines would take for their own."""
    if len({offer.machine_id for offer in offers}) == 1:
        return
    for node in nodes:
        if _is_loopback(node.address):
            raise PlanError(
                f"{node.host.name}: its address {node.address} is that of every host itself; "
                "give the one by which other hosts reach it, as in `address=10.0.0.1`",
                host=node.host.name,
            )


def _check_apart(nodes: Sequence[Node]) -> None:
    """Refuse one address for two nodes: torchrun tells nodes apart, and numbers them, by it."""
    by_address = {node.address: node.host.name for node in nodes}
    for node in nodes:
        if (other := by_address[node.address]) != node.host.name:
            raise PlanError(
                f"{node.host.name} and {other} have the same address {node.address}, and an "
                "elastic job needs one for each: give them with `address=`, or say one number "
                "with nnodes=",
                host=node.host.name,
            )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _check_backend(spec: JobSpec, nodes: Sequence[Node]) -> None:
    bare = [node.host.name for node in nodes if not node.gpus]
    if spec.backend == "nccl" and bare:
        raise PlanError(
            f"backend='nccl' needs GPUs, and {', '.join(bare)} offer none; "
            "leave backend out (gloo is used on hosts without GPUs) or select other hosts"
        )


def _free_port(head: Offer) -> int:
    if not head.ports:
        raise PlanError(
            f"{head.host.name}: no free port was found for the ranks to meet at; "
            "give one with master_port=",
            host=head.host.name,
        )
    return head.ports[0]
