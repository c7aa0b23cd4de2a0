"""What was asked for, what hosts offer, and the plan that follows: frozen values."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from distributed_training.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distributed_training.cluster import Cluster
    from distributed_training.fleet import Host
    from distributed_training.mpirun import MpiOptions, Mpirun

Interconnect = Literal["auto", "tcp", "infiniband"]
INTERCONNECTS: tuple[Interconnect, ...] = get_args(Interconnect)


@dataclass(frozen=True, slots=True)
class Program:
    """What each rank runs: a script, a module (``python -m``) or any command.

    A command given as one string is run by a shell on the host, so that variables expand there.
    ``values`` are for no eye, so they are in no command line: the call of a function, as JSON.
    """

    kind: Literal["script", "module", "command"]
    value: str | tuple[str, ...]
    arguments: tuple[str, ...] = ()
    values: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RayOptions:
    """What each node of a Ray cluster has to deal out.

    :param num_cpus: None: as many as it has slots, or beside GPUs all that the host has
    :param object_store_memory: bytes; None: what Ray takes by itself
    """

    num_cpus: int | None = None
    object_store_memory: int | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the user asked for, validated and free of templates. Times are in seconds."""

    job_id: str
    program: Program
    launcher: str = "process"
    nnodes: int | None = None  # None: every host offered; the most, if there is a least
    min_nodes: int | None = None  # of an elastic job, which goes on without hosts that it loses
    max_restarts: int = 0  # of an elastic job's ranks, by their launcher
    nproc_per_node: int | None = None  # None: every slot of a host
    oversubscribe: bool = False
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    host_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # what hosts mask in logs
    python: str = "python3"
    setup: str | None = None
    source: str | None = None  # sha256 of the snapshot
    master_port: int | None = None
    backend: str | None = None
    local_rank_argument: str | None = None
    cluster: Cluster | None = None  # of TensorFlow
    mpi: MpiOptions | None = None
    ray: RayOptions | None = None
    stop_signal: str = "SIGTERM"
    grace_period: float = 30.0
    start_timeout: float = 300.0
    host_timeout: float = 60.0
    orphan_timeout: float | None = 900.0
    hang_timeout: float | None = None
    interconnect: Interconnect = "auto"
    check_group: bool = True
    label: Mapping[str, str] = field(default_factory=dict)
    quarantine: float = 0.0  # how long a host is left out after a fault of its own
    keep_days: float = 7.0  # days that the job's folders stay on the hosts
    disk_cap: float = 100e9  # bytes that ended jobs and sources may take on a host
    checkpoint_dir: str | None = None  # on the hosts
    resumes: bool = False  # a restart or a retry, which goes on from the newest checkpoint
    since: float | None = None  # time.time() of its first wish, for a job that may wait for slots

    def wish(self, host: str, slots: Sequence[str] | None) -> dict[str, Any]:
        """Return what tells an agent which slots of its host the job wants, and since when.

        :param slots: their names; empty: none any more; None: what was said last
        """
        told = {"job": self.job_id, "label": dict(self.label), "since": self.since, "place": host}
        return {**told, "slots": None if slots is None else list(slots)}


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one rank: a GPU, or a CPU place. The name is the name of its lock on the host."""

    name: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A host's answer to the question what it has; see ``offer`` of the agent for the fields."""

    host: Host
    machine_id: str
    root: str
    home: str = ""
    gpus: tuple[Mapping[str, Any], ...] = ()
    busy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)  # the interface that holds each
    ssh_address: str | None = None
    python: str = ""
    user: str = ""
    boot_id: str = ""
    cpus: int = 1
    disk_free: int = 0
    has_source: bool = False
    clock: float = 0.0  # time.time() there
    clock_offset: float = 0.0  # seconds that it is ahead of ours
    round_trip: float = 0.0  # seconds that the question took
    drained: Mapping[str, Any] | None = None  # since, by and reason
    fault: Mapping[str, Any] | None = None  # of its own: since and reason
    checkpoint: Mapping[str, Any] | None = None  # the newest complete one: path, step and time
    checkpoints_passed_over: tuple[Mapping[str, str], ...] = ()  # path, and why
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the whole answer

    @classmethod
    def from_reply(cls, host: Host, reply: Mapping[str, Any], **measured: Any) -> Offer:
        """Read an agent's reply.

        :param measured: fields that the answer itself does not tell
        """
        known = {name: reply[name] for name in cls.__slots__ if name in reply}
        known["gpus"] = tuple(reply["gpus"])
        known["ports"] = tuple(reply["ports"])
        known["checkpoints_passed_over"] = tuple(reply.get("checkpoints_passed_over", ()))
        return cls(host=host, facts=reply, **known, **measured)

    @property
    def address(self) -> str:
        """How other hosts reach this one: as the fleet says, else where SSH arrived on it."""
        address = self.host.address or self.ssh_address
        if not address:
            raise PlanError(
                f"{self.host.name}: no address is known by which other hosts reach it; "
                "give one in the fleet's host list, as in `address=10.0.0.1`",
                host=self.host.name,
            )
        return address

    @property
    def interface(self) -> str | None:
        """Name of the network interface that holds the address, if one does."""
        return self.addresses.get(self.host.address or "") or self.addresses.get(
            self.ssh_address or ""
        )

    def withheld(self, quarantine: float) -> str | None:
        """Return why no job may use the host, None if jobs may.

        :param quarantine: seconds that a fault of the host's own counts
        """
        if self.drained:
            by, why = self.drained.get("by", "somebody"), self.drained.get("reason")
            since = _date(self.drained["since"])
            return f"drained by {by} since {since}" + (f" ({why})" if why else "")
        if self.fault and self.clock < self.fault["since"] + quarantine:
            until = _date(self.fault["since"] + quarantine)
            return f"quarantined until {until}: {self.fault.get('reason')}"
        return None

    def slots(self) -> tuple[Slot, ...]:
        """Return the host's slots that the fleet lets us use, in order."""
        every = self._gpu_slots() if self.gpus or self.host.gpus else self._cpu_slots()
        return tuple(every[place] for place in self.host.chosen_slots(len(every)))

    def _cpu_slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(f"cpu-{n}") for n in range(self.host.slots or 1))

    def _gpu_slots(self) -> tuple[Slot, ...]:
        wanted = self.host.gpus or tuple(gpu["uuid"] for gpu in self.gpus)
        found = [gpu for name in wanted if (gpu := self._gpu(name))]
        count = self.host.slots or len(wanted)
        if len(found) < len(wanted) or len(found) < count:
            listed = ", ".join(f"{gpu['index']}={gpu['uuid']}" for gpu in self.gpus) or "none"
            raise PlanError(
                f"{self.host.name}: the fleet names {count} slots and the GPUs "
                f"{', '.join(wanted) or 'found'}, but nvidia-smi on the host lists: {listed}; "
                "correct `slots=` or `gpus=`, or see why the driver does not show them",
                host=self.host.name,
            )
        return tuple(Slot(f"gpu-{gpu['uuid']}", gpu["uuid"]) for gpu in found[:count])

    def _gpu(self, name: str) -> Mapping[str, Any] | None:
        for gpu in self.gpus:
            if name in (str(gpu["index"]), gpu["uuid"]):
                return gpu
        return None


@dataclass(frozen=True, slots=True)
class Rank:
    """One training process to be.

    :param role: what it is in a job whose ranks differ: ``worker 1``
    :param port: at which it listens on its host, where it has one of its own
    :param serves: None: it ends by itself when its work is done; else it serves others, and may go
        on for so many seconds when these have ended well
    """

    rank: int
    local_rank: int
    slots: tuple[Slot, ...]
    role: str = ""
    port: int | None = None
    serves: float | None = None

    @property
    def slot(self) -> Slot:
        """Its only slot, or the first of them."""
        return self.slots[0]


@dataclass(frozen=True, slots=True)
class Process:
    """What an agent executes: a rank, or a launcher that starts the ranks of its node.

    ``env`` is set as it is; ``defaults`` only where the host's login has no such variable.
    ``no_proxy`` are addresses that it reaches without any proxy, in addition to those that
    variables of that name exempt. ``with_mpi4py`` is what is executed instead where the job's
    interpreter has that package.

    ``started_by`` tells who executes it: the ``agent`` at once; a ``launcher``, for a rank that
    comes to the agent for all the rest; or a ``relay``, when a launcher on another host wants a
    daemon of its own here.
    """

    name: str
    rank: int | None
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    defaults: Mapping[str, str] = field(repr=False)
    no_proxy: tuple[str, ...] = ()
    with_mpi4py: tuple[str, ...] | None = None
    started_by: Literal["agent", "launcher", "relay"] = "agent"


@dataclass(frozen=True, slots=True)
class Node:
    """A host's part in a job; node 0 is the head."""

    node_rank: int
    host: Host
    address: str
    interface: str | None
    folder: str  # of this node on its host
    ranks: tuple[Rank, ...]
    slots: tuple[Slot, ...]  # held by this node; fewer than ranks if oversubscribed
    cpus: int = 1
    infiniband: bool = False
    checkpoint_dir: str | None = None
    processes: tuple[Process, ...] = ()

    @property
    def work(self) -> str:
        """Working directory of the ranks."""
        return f"{self.folder}/work"

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the node's GPUs in the order of its slots."""
        return tuple(slot.gpu for slot in self.slots if slot.gpu)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every node and rank of one attempt at a job."""

    spec: JobSpec
    attempt: int
    nodes: tuple[Node, ...]
    master_port: int
    resume_from: str | None = None  # path of a checkpoint on the hosts
    passed_over: tuple[str, ...] = ()  # what looked newer than that, and why it is not used
    mpirun: Mpirun | None = None
    left_out: tuple[str, ...] = ()  # hosts that an elastic job does without, and why

    @property
    def head(self) -> Node:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(len(node.ranks) for node in self.nodes)

    @property
    def needs_infiniband(self) -> bool:
        """Whether InfiniBand was asked for, and there are hosts to use it between."""
        return self.spec.interconnect == "infiniband" and len(self.nodes) > 1

    @property
    def group_size(self) -> int | None:
        """Size of the group that every rank must join; None if that is not checked.

        Parameter servers and those whom they serve form groups of another kind.
        """
        serves = any(rank.serves is not None for node in self.nodes for rank in node.ranks)
        checked = self.spec.check_group and self.world_size > 1 and not serves
        return self.world_size if checked else None

    def describe(self) -> Iterator[str]:
        """Yield the plan as lines for a person: no values of variables, they may be secret."""
        spec = self.spec
        yield (
            f"Job {spec.job_id}, attempt {self.attempt}: {self.world_size} ranks on "
            f"{len(self.nodes)} nodes, launcher {spec.launcher}, "
            f"rendezvous at {self.head.address}:{self.master_port}"
        )
        if spec.min_nodes is not None:
            yield f"  elastic: at least {spec.min_nodes} nodes, at most {spec.nnodes}"
        yield from (f"  left out: {told}" for told in self.left_out)
        if self.mpirun:
            yield f"  ranks are started by {self.mpirun}"
        yield from (f"  incomplete checkpoint passed over: {told}" for told in self.passed_over)
        if spec.resumes and spec.checkpoint_dir:
            yield f"  resuming from {self.resume_from or 'nothing: no checkpoint is complete'}"
        for node in self.nodes:
            yield (
                f"  node {node.node_rank} {node.host.name} ({node.address}, "
                f"{node.interface or 'interface unknown'}): ranks {_told(node.ranks)} on "
                f"{', '.join(slot.name for slot in node.slots)}"
            )


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _told(ranks: Sequence[Rank]) -> str:
    if any(rank.role for rank in ranks):
        return ", ".join(f"{rank.rank} ({rank.role})" for rank in ranks)
    return _span([rank.rank for rank in ranks])


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
