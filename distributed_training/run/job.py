"""The reference to a running job: the one record that crosses from worker to triggerer and back."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from distributed_training.fleet import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import DataclassInstance

    from distributed_training.plan import Plan

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class NodeRef:
    """One node of a job, and how far its journal was read (bytes)."""

    node_rank: int
    host: Host
    address: str
    root: str
    ranks: tuple[int, ...]
    offset: int = 0
    servers: tuple[int, ...] = ()  # ranks that are let go when all others are done
    roles: tuple[str, ...] = ()  # of the ranks, where they differ
    slots: tuple[str, ...] = ()  # of the ranks; empty for one that has none

    def role(self, rank: int | None) -> str:
        """Return what a rank is, empty where all are the same, and for what is none."""
        named = zip(self.ranks, self.roles, strict=False)
        return next((role for each, role in named if each == rank), "")


@dataclass(frozen=True, slots=True)
class History:
    """The restarts of a job's ranks within one try, by their cause."""

    lost_hosts: int = 0
    errors: int = 0
    ports: int = 0
    races: int = 0  # for slots that were free when the plan was made

    @property
    def attempt(self) -> int:
        """Number of the attempt that follows these restarts."""
        return self.restarts + self.races

    @property
    def restarts(self) -> int:
        """How often ranks had begun."""
        return self.lost_hosts + self.errors + self.ports


_FIRST = History()


@dataclass(frozen=True, slots=True)
class JobRef:
    """What it takes to find a job on its hosts again. It holds no secret. Times are in seconds."""

    job_id: str
    attempt: int
    nodes: tuple[NodeRef, ...]
    grace_period: float
    host_timeout: float
    orphan_timeout: float | None
    started: float  # time.time() of the plan
    history: History = _FIRST
    hang_timeout: float | None = None
    min_nodes: int | None = None  # that an elastic job must have left to go on; None: all

    @classmethod
    def of(cls, plan: Plan, started: float = 0.0, history: History = _FIRST) -> JobRef:
        """Return the reference to the job that ``plan`` starts."""
        spec = plan.spec
        nodes = tuple(
            NodeRef(
                node.node_rank,
                node.host,
                node.address,
                node.folder.partition("/jobs/")[0],
                tuple(rank.rank for rank in node.ranks),
                servers=tuple(rank.rank for rank in node.ranks if rank.serves is not None),
                roles=tuple(rank.role for rank in node.ranks if rank.role),
                slots=tuple(rank.slots[0].name if rank.slots else "" for rank in node.ranks),
            )
            for node in plan.nodes
        )
        return cls(
            spec.job_id,
            plan.attempt,
            nodes,
            spec.grace_period,
            spec.host_timeout,
            spec.orphan_timeout,
            started,
            history,
            spec.hang_timeout,
            _min_nodes(plan),
        )

    @property
    def head(self) -> NodeRef:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(len(node.ranks) for node in self.nodes)

    def at(self, offsets: Mapping[int, int]) -> JobRef:
        """Return the same job, read up to ``offsets`` (bytes, by node rank)."""
        nodes = tuple(
            dataclasses.replace(node, offset=offsets[node.node_rank]) for node in self.nodes
        )
        return dataclasses.replace(self, nodes=nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return the reference as JSON values."""
        return as_json(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> JobRef:
        """Rebuild a reference from :meth:`to_dict`, also one that another version wrote."""
        nodes = tuple(map(_node, record["nodes"]))
        history = _known(History, record.get("history", {}))
        return _known(cls, {**record, "nodes": nodes, "history": history})


def _min_nodes(plan: Plan) -> int | None:
    spec = plan.spec
    if spec.min_nodes is None:
        return None
    return spec.min_nodes if spec.max_restarts else len(plan.nodes)  # each loss costs one


def as_json(record: DataclassInstance) -> dict[str, Any]:
    """Return a record's fields as JSON values."""
    # Lists, not tuples: Airflow's state store refuses what JSON does not have.
    fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(record)))
    return fields


def host_from_dict(record: Mapping[str, Any]) -> Host:
    """Rebuild a host from its fields, also after a trip through JSON."""
    tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    return _known(Host, tuples)


def _node(record: Mapping[str, Any]) -> NodeRef:
    host = host_from_dict(record["host"])
    lists = {name: tuple(record.get(name, ())) for name in ("ranks", "servers", "roles", "slots")}
    return _known(NodeRef, {"address": host.ssh_host, **record, "host": host, **lists})


def _known(kind: Callable[..., Record], record: Mapping[str, Any]) -> Record:
    """Make a record of the fields that this version knows: jobs outlive an upgrade."""
    return kind(
        **{name: record[name] for name in inspect.signature(kind).parameters if name in record}
    )
