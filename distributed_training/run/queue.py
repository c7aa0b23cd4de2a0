"""Wait for slots: leave dated tickets, ask again and again, and say who is in the way."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from distributed_training.cluster import Cluster
from distributed_training.errors import PlanError, SlotsBusy, TrainingError
from distributed_training.launchers.dealing import dealt
from distributed_training.placing import assembled, place
from distributed_training.plan import JobSpec, Plan, Program
from distributed_training.run.job import History, as_json, host_from_dict
from distributed_training.run.offer import offers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from distributed_training.fleet import Host
    from distributed_training.plan import Node, Offer
    from distributed_training.run.agents import HostAgent

# Seconds for an answer: tickets on other hosts have to be renewed within a minute.
PATIENCE = 30.0
PAUSE = (5.0, 10.0)  # seconds between two questions: jobs that wait together do not ask together


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits for slots. It holds no secret. Times are those of ``time.time()``.

    :param hosts: all that the job may use
    :param since: when it first wished to start: the oldest of those who wait goes first
    :param until: when it gives up
    """

    job_id: str
    label: Mapping[str, str]
    hosts: tuple[Host, ...]
    nnodes: int | None
    nproc_per_node: int | None
    oversubscribe: bool
    history: History
    since: float
    until: float
    quarantine: float
    cluster: Cluster | None = None
    min_nodes: int | None = None

    @classmethod
    def of(cls, spec: JobSpec, hosts: Sequence[Host], history: History, until: float) -> Self:
        """Return the entry of a job that was refused."""
        return cls(
            spec.job_id,
            dict(spec.label),
            tuple(hosts),
            spec.nnodes,
            spec.nproc_per_node,
            spec.oversubscribe,
            history,
            time.time() if spec.since is None else spec.since,
            until,
            spec.quarantine,
            spec.cluster,
            spec.min_nodes,
        )

    @property
    def spec(self) -> JobSpec:
        """As much of the specification as it takes to place the job."""
        return JobSpec(
            self.job_id,
            Program("command", ()),
            nnodes=self.nnodes,
            min_nodes=self.min_nodes,
            nproc_per_node=self.nproc_per_node,
            oversubscribe=self.oversubscribe,
            label=self.label,
            since=self.since,
            quarantine=self.quarantine,
            cluster=self.cluster,
        )

    def given_up(self, news: str) -> SlotsBusy:
        """Return the error of a job that has waited long enough."""
        waited = time.time() - self.since
        return SlotsBusy(
            f"waited {waited:.0f} s (queue_timeout) in vain for slots: {news}; raise "
            "queue_timeout, stop those jobs, or let this one use more hosts"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return as_json(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Rebuild an entry from :meth:`to_dict`, also after a trip through JSON."""
        hosts = tuple(map(host_from_dict, record["hosts"]))
        history = History(**record["history"])
        cluster = record.get("cluster") and Cluster(**record["cluster"])
        return cls(**{**record, "hosts": hosts, "history": history, "cluster": cluster})


class Queue:
    """One who waits. Whoever asks for a job renews its tickets, so it may be handed over.

    :param log: told who is in the way, whenever that changes
    """

    def __init__(
        self, waiting: Waiting, agents: Sequence[HostAgent], log: Callable[[str], None]
    ) -> None:
        self._waiting = waiting
        self._spec = waiting.spec
        self._agents = agents
        self._log = log
        self._wanted: dict[str, list[str]] | None = None

    async def wait(self) -> SlotsBusy | None:
        """Return when all slots that the job needs are free for it, or why it gives up."""
        told = ""
        while news := await self._news():
            if news != told:
                self._log(f"Waiting for slots: {news}")
                told = news
            left = self._waiting.until - time.time()
            if left <= 0:
                await withdraw(self._spec, self._agents)
                return self._waiting.given_up(news)
            await asyncio.sleep(min(left, random.uniform(*PAUSE)))
        return None

    async def _news(self) -> str:
        """Return who or what is in the way; nothing if it is time to launch."""
        try:
            found = await self._ask()
            plan = _placed(self._spec, found)
            if self._wants(plan):
                await self._ask()
        except PlanError:
            return ""  # launching will say what is wrong
        except TrainingError as error:
            return error.message
        return "; ".join(in_the_way(plan, found))

    async def _ask(self) -> list[Offer]:
        needed = self._waiting.min_nodes or self._waiting.nnodes
        return await offers(self._agents, wish=self._wish, needed=needed, within=PATIENCE)

    def _wish(self, host: str) -> dict[str, Any]:
        slots = None if self._wanted is None else self._wanted.get(host, ())
        return self._spec.wish(host, slots)

    def _wants(self, plan: Plan) -> bool:
        """Note what the job waits for by this plan, and tell whether the hosts must be told."""
        before = self._wanted
        self._wanted = {node.host.name: [slot.name for slot in node.slots] for node in plan.nodes}
        return before != self._wanted


def _placed(spec: JobSpec, found: Sequence[Offer]) -> Plan:
    """Return which slots a job of this size takes, whatever it runs there."""
    if spec.cluster is None:
        return place(spec, found)
    return assembled(spec, dealt(spec, spec.cluster, found), 0)


def in_the_way(plan: Plan, found: Sequence[Offer]) -> Iterator[str]:
    """Yield who holds slots of the plan, or waits for them and goes first."""
    busy = {offer.host.name: offer.busy for offer in found}
    for node in plan.nodes:
        yield from _in_the_way_on(node, busy[node.host.name])


def _in_the_way_on(node: Node, busy: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    slots: dict[str, list[str]] = {}
    for slot in node.slots:
        if slot.name in busy:
            slots.setdefault(_who(busy[slot.name]), []).append(slot.name)
    for who, names in slots.items():
        yield f"{node.host.name} {', '.join(names)} {who}"


def _who(holder: Mapping[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder.get("since") or 0))
    label = holder.get("label") or {}
    run = f", run {label['run']}" if "run" in label else ""
    how = "wanted first by waiting" if holder.get("waiting") else "held by"
    return f"{how} job {holder.get('job')} of user {holder.get('user')}{run} since {since}"


@asynccontextmanager
async def tickets(spec: JobSpec, agents: Sequence[HostAgent]) -> AsyncIterator[None]:
    """Take the job's tickets back if it fails, unless it fails because it has to wait."""
    try:
        yield
    except SlotsBusy:
        raise
    except BaseException:
        await withdraw(spec, agents)
        raise


async def withdraw(spec: JobSpec, agents: Sequence[HostAgent]) -> None:
    """Take the job's tickets back; where that fails they are void after a minute."""
    if spec.since is not None:
        with suppress(TrainingError):
            await offers(agents, wish=lambda host: spec.wish(host, ()), within=PATIENCE)
