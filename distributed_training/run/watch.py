"""Watch a job on all its hosts to its end, and end all of it when a part fails."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed_training.errors import AgentError, HostUnreachable, JobTakenOver, TrainingError
from distributed_training.run.elastic import fence, is_whole, left, may_go_on, remains, shrink
from distributed_training.run.hang import Quiet, findings
from distributed_training.run.job import JobRef, NodeRef
from distributed_training.run.page import Painter
from distributed_training.run.relays import Relays
from distributed_training.run.release import release, work_is_done
from distributed_training.run.shown import Echo, Progress, Shown
from distributed_training.run.stop import stop
from distributed_training.run.verdict import TIMED_OUT, NodeState, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from distributed_training.errors import JobStalled
    from distributed_training.run.agents import HostAgent, Stream
    from distributed_training.run.page import Page

SSH_PORT = 22
_RETRY = 2.0  # seconds until a broken connection is tried again
_ATTEMPT = 5.0  # least seconds that an attempt to connect is given
_FROZEN = 15.0  # seconds without a sign of life, of which an agent sends one every 5 s
_REPLACED = 40.0  # seconds in which Airflow surely ends a watcher that it has replaced
_PROBE = 8.0  # seconds that a neighbour is given to say whether it reaches a silent host


class Silence:
    """For how long a host has not been heard of."""

    def __init__(self) -> None:
        self._heard = time.monotonic()
        self._noted = False

    @property
    def seconds(self) -> float:
        """Seconds since the host was heard of."""
        return time.monotonic() - self._heard

    def patience(self, host_timeout: float) -> float:
        """Return the seconds to wait for a connection, so that a lost host is found in time."""
        return max(_ATTEMPT, host_timeout - self.seconds)

    def ends(self) -> None:
        """Note that the host was heard of."""
        self._heard = time.monotonic()
        self._noted = False

    def begins(self) -> bool:
        """Return whether it is news that the host is silent."""
        news, self._noted = not self._noted, True
        return news


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: ``error`` is None when it succeeded."""

    ref: JobRef
    error: TrainingError | None
    ended: float  # time.time()

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        error = self.error.to_dict() if self.error else None
        return {"ref": self.ref.to_dict(), "error": error, "ended": self.ended}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Outcome:
        """Rebuild an outcome from :meth:`to_dict`."""
        error = TrainingError.from_dict(record["error"]) if record["error"] else None
        return cls(JobRef.from_dict(record["ref"]), error, record["ended"])


class Watcher:
    """One watcher of one job. It owns the job while no other has attached since.

    :param agents: by name of the host
    :param owner: token by which agents know this watcher
    :param log: takes each line for the task's log
    :param deadline: time.time() at which the job is ended, if it still runs
    :param shown: what can be known of the task's log
    :param page: where the job is shown while it is watched
    """

    def __init__(
        self,
        ref: JobRef,
        agents: Mapping[str, HostAgent],
        owner: str,
        log: Callable[[str], None],
        deadline: float | None = None,
        shown: Shown | None = None,
        page: Page | None = None,
    ) -> None:
        self._ref = ref
        self._agents = agents
        self._owner = owner
        self._log = log
        self._deadline = deadline
        self._shown = shown or Shown()
        self._echo = Echo(self._shown)
        self._own: set[int] = set()  # nodes that nobody can have taken from us unnoticed
        self._frozen = -math.inf
        self._born = time.monotonic()
        self.has_watched = False
        self._nodes = {node.node_rank: NodeState(node) for node in ref.nodes}
        self._offsets = {node.node_rank: node.offset for node in ref.nodes}
        self._stopped: str | None = None  # why we ended the job
        self._ending: list[asyncio.Future[None]] = []
        self._aside: list[asyncio.Future[None]] = []  # what nobody has to wait for
        self._relays = Relays(ref, agents, log)
        self._quiet = Quiet()
        self._stalled: JobStalled | None = None
        self._released = asyncio.Event()
        self._painter = Painter(ref, page, log)

    @property
    def ref(self) -> JobRef:
        """The job, and how far it was read."""
        return self._ref.at(self._offsets)

    @property
    def may_be_replaced(self) -> bool:
        """Whether we stood still lately, so that another may be about to take over."""
        return time.monotonic() - self._frozen < _REPLACED

    async def watch(self) -> Outcome:
        """Return when the job has ended on every host, or a host is given up."""
        await self._painter.look_back()
        async with asyncio.TaskGroup() as group:
            timers = (
                self._end_at_deadline(),
                self._end_if_stalled(),
                self._release_servers(),
                self._painter.paint(self._nodes.values()),
            )
            waiting = [group.create_task(timer) for timer in timers]
            states = self._nodes.values()
            await asyncio.wait([group.create_task(self._follow(state)) for state in states])
            await asyncio.gather(*self._ending)
            self._relays.stop()
            for timer in (*waiting, *self._aside):
                timer.cancel()
        nodes = list(self._nodes.values())
        error = verdict(self._ref, nodes, self._stopped)
        if error and self._stalled:
            error = self._stalled
        await self._painter.finish(nodes, error)
        ref = remains(self.ref, nodes) if is_whole(self._ref, nodes) else self.ref
        return Outcome(ref, error, time.time())

    async def end(self, reason: str) -> None:
        """End the job on every host, unless another watcher owns it by now."""
        self._stopped = self._stopped or reason
        await self._end(reason)

    async def _end(self, reason: str) -> None:
        """Ask every node that runs to end, until each has heard it or is known to be gone."""
        told: set[int] = set()
        while running := tuple(state.ref for state in self._nodes.values() if state.running):
            left = dataclasses.replace(
                self._ref, nodes=tuple(node for node in running if node.node_rank not in told)
            )
            for answer in await stop(left, self._agents, reason=reason, owner=self._owner):
                if answer.state != "unconfirmed":
                    told.add(answer.node.node_rank)
                else:
                    self._log(f"{answer.node.host.name}: not confirmed stopped: {answer.detail}")
            if told >= {node.node_rank for node in running}:
                return
            await asyncio.sleep(_RETRY)

    async def _end_at_deadline(self) -> None:
        if self._deadline is not None:
            await asyncio.sleep(max(0.0, self._deadline - time.time()))
            await self.end(TIMED_OUT)

    async def _release_servers(self) -> None:
        """Let those end that serve others, once these are done."""
        await self._released.wait()
        states = [state for state in self._nodes.values() if state.ref.servers]
        tell = (release(self._ref, each, self._agents[each.ref.host.name]) for each in states)
        await asyncio.gather(*tell)

    async def _end_if_stalled(self) -> None:
        limit, states = self._ref.hang_timeout, self._nodes.values()
        while limit is not None and not self._stopped:
            since = await self._quiet.lasts(
                limit, lambda: [each.ref.node_rank for each in states if each.running]
            )
            if self._ending or self._released.is_set():  # the rest is a matter of seconds
                return
            self._log(f"The job has been silent for {limit:g} s; asking its ranks where they are")
            found = await findings(self._ref, self._agents, list(states))
            if self._quiet.since == since and not self._stopped:
                for line in found.lines():
                    self._log(line)
                self._stalled = found.error(limit)
                await self.end("it stood still for hang_timeout")

    async def _follow(self, state: NodeState) -> None:
        """Read a node's journal to its end, over as many connections as it takes."""
        silence = Silence()
        while state.running:
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(silence.patience(self._ref.host_timeout)):
                        stream = await stack.enter_async_context(self._attached(state))
                    await self._read(state, stream, silence)
            except JobTakenOver:
                silence.ends()
                await self._stand_aside(state.ref.node_rank)
            except (HostUnreachable, TimeoutError) as error:
                await self._agents[state.ref.host.name].transport.close()
                if silence.begins():
                    self._log(f"{_reason(state, error)}; trying again, the ranks go on")
                await self._look_into(state, silence.seconds)
            except AgentError as error:
                self._lose(state, error.message)
            if state.running:
                await asyncio.sleep(_RETRY)

    async def _stand_aside(self, node: int) -> None:
        """Wait: if Airflow still wants us after a while, it is the other watcher that is gone."""
        if node in self._own:
            await asyncio.sleep(_REPLACED)
            self._own.discard(node)

    def _attached(self, state: NodeState) -> AbstractAsyncContextManager[Stream]:
        """Attach where the last watcher, whoever it was, has acknowledged."""
        return self._agents[state.ref.host.name].stream(
            "attach",
            job=self._ref.job_id,
            attempt=self._ref.attempt,
            node=state.ref.node_rank,
            offset=None,
            owner=self._owner,
            metrics=self._painter.picture.metrics_read,
            again=state.ref.node_rank in self._own,
            force=time.monotonic() > self._born + _REPLACED,
        )

    async def _read(self, state: NodeState, stream: Stream, silence: Silence) -> None:
        """Take lines as they come. Whatever the agent sends is answered: that renews the lease."""
        node = state.ref.node_rank
        silence.ends()
        state.clock = stream.answer["clock"] - (stream.asked + time.time()) / 2
        for record in stream.answer["passed"]:
            self._painter.picture.note(state.ref, record, state.clock)
            self._learn(state, record)
        old = 0 if node in self._own else int(stream.answer["size"])
        self._own.add(node)
        self.has_watched = True
        await self._take_all(state, stream, silence, old)

    async def _take_all(self, state: NodeState, stream: Stream, silence: Silence, old: int) -> None:
        node = state.ref.node_rank
        position = int(stream.answer["offset"])
        progress = Progress(self._shown)
        looked_up = False
        while lines := await asyncio.wait_for(stream.lines(), self._ref.host_timeout):
            for line in lines:
                if silence.seconds > _FROZEN:  # what waited here may have been read by another
                    self._frozen = time.monotonic()
                    return
                record = json.loads(line)
                self._quiet.note(node, record)
                self._painter.picture.note(state.ref, record, state.clock)
                if "t" not in record:  # a sign of life, not part of the journal
                    continue
                position += len(line) + 1
                if position <= self._offsets[node]:
                    # The last watcher has shown it; it may have ended with no word of this end.
                    self._learn(state, record)
                    continue
                again = position <= old
                if again and not looked_up:
                    looked_up = True
                    ahead = stream.answer["clock"] - stream.asked  # by no more than that
                    await self._echo.look_up(state.ref.host.name, record["t"] - ahead)
                self._take(state, record, again=again)
                self._offsets[node] = position
            silence.ends()
            progress.reached(self._offsets[node])
            await stream.say(progress.answer())

    def _take(self, state: NodeState, record: Mapping[str, Any], *, again: bool) -> None:
        """Act on one line of a journal."""
        kind, host = record["k"], state.ref.host.name
        if kind == "log":
            source = record["r"] if isinstance(record["r"], str) else f"rank {record['r']}"
            self._show(host, f"[{source} {host}] {record['m']}", again)
        elif kind == "note":
            self._show(host, f"[{host}] {record['m']}", again)
        else:
            self._learn(state, record)

    def _show(self, host: str, line: str, again: bool) -> None:
        if not (again and self._echo.has(host, line)):
            self._log(line)

    def _learn(self, state: NodeState, record: Mapping[str, Any]) -> None:
        """Take note of what happened, once: an earlier watcher may have read of it before us."""
        self._relays.note(record)
        kind, host = record["k"], state.ref.host.name
        if kind == "exit" and record not in state.exits:
            state.exits.append(record)
            if state.failure is record:
                self._end_others(f"a rank failed on {host}")
            elif work_is_done(self._nodes.values()):
                self._released.set()
        elif kind == "ended":
            state.ended = record
            if state not in left(self._ref, list(self._nodes.values())):
                self._go_on_without(state, record["reason"])
            elif record["state"] != "success":
                self._end_others(f"the job ended on {host}: {record['reason']}")

    async def _look_into(self, state: NodeState, silent: float) -> None:
        """Judge a silent host: whether it is gone, or only we cannot reach it."""
        limit = self._ref.orphan_timeout
        if limit is not None and silent > limit:
            self._lose(state, f"it has been out of reach for {limit:g} s")
        elif silent >= self._ref.host_timeout and await self._neighbours_miss(state):
            self._lose(state, "neither we nor the other hosts of the job can reach it")

    async def _neighbours_miss(self, state: NodeState) -> bool:
        """Return whether other hosts of the job answer us and cannot reach this one either."""
        others = [node for node in self._ref.nodes if node is not state.ref]
        port = state.ref.host.port or SSH_PORT

        async def reaches(node: NodeRef) -> bool | None:
            try:
                answer = await self._agents[node.host.name].call(
                    "reach", within=_PROBE, address=state.ref.address, port=port
                )
            except TrainingError:
                return None
            return bool(answer["reached"])

        answers = await asyncio.gather(*(reaches(node) for node in others))
        return False in answers and True not in answers

    def _lose(self, state: NodeState, why: str) -> None:
        state.lost = why
        self._go_on_without(state, why)

    def _go_on_without(self, state: NodeState, why: str) -> None:
        """Let an elastic job go on, if enough nodes are left; end any other."""
        nodes, name = list(self._nodes.values()), state.ref.host.name
        those = left(self._ref, nodes)
        if self._ending or not may_go_on(self._ref, nodes):
            self._end_others(f"{name} is lost")
            return
        self._log(
            f"{name} is lost: {why}; the job goes on with {len(those)} of {len(nodes)} nodes "
            f"(at least {self._ref.min_nodes}), as soon as torchrun has started its ranks again"
        )
        tell = [
            shrink(self._ref, each, self._agents[each.ref.host.name], len(those)) for each in those
        ]
        for task in (*tell, fence(self._ref, state, self._agents)):
            self._aside.append(asyncio.ensure_future(task))

    def _end_others(self, reason: str) -> None:
        """End the job on all hosts, once: each agent has ended its own part already."""
        if not self._ending and len(self._nodes) > 1:
            self._ending.append(asyncio.ensure_future(self._end(reason)))


def _reason(state: NodeState, error: BaseException) -> str:
    name = state.ref.host.name
    return str(error) if str(error) else f"{name}: nothing has been heard of it for a while"
