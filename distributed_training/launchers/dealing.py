"""Deal the tasks of a cluster to hosts: a pure function of what they have room for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed_training.errors import HostWithheld, PlanError, TrainingError
from distributed_training.placing import Share, apart
from distributed_training.plan import Rank, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distributed_training.cluster import Cluster, Placement
    from distributed_training.plan import JobSpec, Offer

_Place = tuple[Slot, ...]  # of one task


@dataclass(frozen=True, slots=True)
class _Room:
    """What one host has room for: places, the free ones first."""

    offer: Offer
    slots: tuple[Slot, ...]
    places: tuple[_Place, ...]
    free: int

    @classmethod
    def of(cls, offer: Offer, slots: tuple[Slot, ...], size: int) -> _Room:
        """Return the places of ``size`` slots each; what is left over is nobody's."""
        ordered = sorted(slots, key=lambda slot: slot.name in offer.busy)
        places = tuple(
            tuple(ordered[at : at + size]) for at in range(0, len(slots) - size + 1, size)
        )
        free = sum(all(slot.name not in offer.busy for slot in place) for place in places)
        return cls(offer, slots, places, free)

    def first(self, count: int) -> list[_Place]:
        """Return the places of so many tasks in the order of slots; some twice if it must be."""
        chosen = sorted(self.places[:count], key=lambda place: self.slots.index(place[0]))
        return [chosen[n % len(chosen)] for n in range(count)]


def dealt(spec: JobSpec, cluster: Cluster, offers: Sequence[Offer]) -> list[Share]:
    """Return what each host gets that gets anything; the first one has rank 0.

    Tasks without slots of their own go to the hosts of the others in turn.

    :raises PlanError: the cluster does not fit; the message has the numbers
    """
    rooms = _rooms(spec, cluster, offers)
    tasks = cluster.tasks()
    numbers = [number for number, task in enumerate(tasks) if task.takes_slots]
    capacities = _capacities(rooms, len(numbers), oversubscribe=spec.oversubscribe)
    if sum(capacities) < len(numbers):
        raise _too_few(spec, cluster, offers, rooms)
    turns = _turns(capacities, cluster.placement)
    where = dict(zip(numbers, turns, strict=False))
    used = sorted(set(where.values()))
    others = [number for number in range(len(tasks)) if number not in where]
    where |= {number: used[n % len(used)] for n, number in enumerate(others)}
    ports = _Ports(spec)
    return [
        _share(rooms[at], cluster, sorted(n for n in where if where[n] == at), ports) for at in used
    ]


def _rooms(spec: JobSpec, cluster: Cluster, offers: Sequence[Offer]) -> list[_Room]:
    """Return the hosts that may be used, those with most room if not all of them may."""
    taken: defaultdict[str, set[str]] = defaultdict(set)
    rooms: list[_Room] = []
    for offer in offers:
        if not offer.withheld(spec.quarantine):
            slots = apart(offer.slots(), taken[offer.machine_id])
            taken[offer.machine_id].update(slot.name for slot in slots)
            rooms.append(_Room.of(offer, slots, cluster.slots_per_worker))
    roomiest = sorted(rooms, key=lambda room: (-room.free, -len(room.places)))[: spec.nnodes]
    return [room for room in rooms if room in roomiest]


def _capacities(rooms: Sequence[_Room], wanted: int, *, oversubscribe: bool) -> list[int]:
    """Return how many tasks each host may take: on free slots alone if these are enough."""
    free = [room.free for room in rooms]
    every = [len(room.places) for room in rooms]
    if sum(free) >= wanted:
        return free
    rounds = -(-wanted // max(1, sum(every))) if oversubscribe else 1
    return [rounds * count for count in every]


def _turns(capacities: Sequence[int], placement: Placement) -> Iterator[int]:
    """Yield hosts by number, each as often as it may take a task."""
    if placement == "slots":
        yield from (at for at, count in enumerate(capacities) for _ in range(count))
        return
    for turn in range(max(capacities, default=0)):
        yield from (at for at, count in enumerate(capacities) if count > turn)


class _Ports:
    """Hands out ports that hosts had free, each once on a machine."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._given: defaultdict[str, set[int]] = defaultdict(set)

    def next(self, offer: Offer, number: int) -> int:
        """Return a port for a rank; the user may have chosen that of rank 0.

        :raises PlanError: none is left
        """
        own = self._spec.master_port
        given = self._given[offer.machine_id]
        left = (port for port in offer.ports if port not in given and port != own)
        port = own if own and number == 0 else next(left, None)
        if port is None:
            raise PlanError(
                f"{offer.host.name}: it has {len(offer.ports)} free ports to offer, and more tasks "
                "than that would listen there; spread them over more hosts",
                host=offer.host.name,
            )
        given.add(port)
        return port


def _share(room: _Room, cluster: Cluster, numbers: Sequence[int], ports: _Ports) -> Share:
    tasks = {number: cluster.tasks()[number] for number in numbers}
    computing = [number for number, task in tasks.items() if task.takes_slots]
    places = dict(zip(computing, room.first(len(computing)), strict=True))
    held = {slot for place in places.values() for slot in place}
    ranks = tuple(
        Rank(
            rank=number,
            local_rank=local,
            slots=places.get(number, ()),
            role=task.name,
            port=ports.next(room.offer, number) if task.listens else None,
            serves=cluster.serves(task),
        )
        for local, (number, task) in enumerate(tasks.items())
    )
    return Share(room.offer, tuple(slot for slot in room.slots if slot in held), ranks)


def _too_few(
    spec: JobSpec, cluster: Cluster, offers: Sequence[Offer], rooms: Sequence[_Room]
) -> TrainingError:
    each = f"{cluster.slots_per_worker} slots" if cluster.slots_per_worker > 1 else "a slot"
    there = [f"{room.offer.host.name} has {len(room.slots)}" for room in rooms]
    reasons = {offer.host.name: offer.withheld(spec.quarantine) for offer in offers}
    withheld = {name: why for name, why in reasons.items() if why}
    told = [*there, *(f"{name} is {why}" for name, why in withheld.items())]
    message = (
        f"the cluster ({cluster}) takes {each} of one host for each task but ps, and "
        f"{', '.join(told)}; ask for fewer, select more hosts, raise `slots=` in the fleet, or set "
        "oversubscribe=True to run several tasks on a slot"
    )
    if not withheld:
        return PlanError(message)
    undrain = f"python -m distributed_training undrain {' '.join(withheld)}"
    return HostWithheld(f"{message}; give hosts back with `{undrain}`", host=next(iter(withheld)))
