"""Notice that a job stands still, ask every rank where it stands, and name the odd one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributed_training.errors import JobStalled, TrainingError
from distributed_training.run.stacks import Stand, odd_ones, stand, together

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from distributed_training.run.agents import HostAgent
    from distributed_training.run.job import JobRef, NodeRef
    from distributed_training.run.verdict import NodeState

_LOOK = 1.0  # seconds between two looks at the clock
_ANSWER = 45.0  # seconds for stacks, flight recorders and GPUs
_GROUPS = 16  # of ranks at one place that are told of
_LINES = 60  # of each group of ranks in the log; all is in stacks.log beside their logs
_TAIL = 30  # frames that the verdict repeats


class Quiet:
    """For how long no rank of a job has printed a line or noted a metric."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self._heard: dict[int, float] = {}
        self._output: dict[int, object] = {}

    def note(self, node: int, record: Mapping[str, Any]) -> None:
        """Take what an agent sends: a line of its journal, or a sign of life."""
        now = self._heard[node] = time.monotonic()
        # A sign of life counts all output, also what goes to logs alone: it is compared, since no
        # clock of a host can be relied on.
        output = record.get("output")
        if "t" in record or output != self._output.get(node):
            self.since = now
        if "t" not in record:
            self._output[node] = output

    async def lasts(self, seconds: float, nodes: Callable[[], Collection[int]]) -> float:
        """Return once it has lasted so long, and since when."""
        while True:
            if self.seconds(nodes()) >= seconds:
                return self.since
            await asyncio.sleep(max(_LOOK, self.since + seconds - time.monotonic()))

    def seconds(self, nodes: Collection[int]) -> float:
        """Return how long it is known to have lasted: up to the oldest sign of a node's life."""
        until = min((self._heard.get(node, 0.0) for node in nodes), default=0.0)
        return max(0.0, until - self.since)


@dataclass(slots=True)
class Findings:
    """What was learnt about a job that stands still."""

    stands: list[Stand] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)  # of GPUs and NCCL
    missing: list[str] = field(default_factory=list)  # who did not answer, and why
    servers: frozenset[int] = frozenset()  # ranks that only wait for what others ask of them

    def lines(self) -> Iterator[str]:
        """Yield them for the log: each stack once, with all ranks that have it."""
        for group in together(self.stands)[:_GROUPS]:
            first = group[0]
            yield f"{names(group)}: {first.place}"
            yield from (f"    {line}" for line in _shown(first, alone=len(group) == 1))
        yield from self.evidence
        yield from self.missing

    def error(self, hang_timeout: float) -> JobStalled:
        """Return the verdict."""
        odd = odd_ones([each for each in self.stands if each.rank not in self.servers])
        rest = [each for each in self.stands if each not in odd]
        told = [
            f"no rank has printed a line or noted a metric for {hang_timeout:g} s "
            "(hang_timeout), so the job was ended everywhere",
            *(f"{each.name} stands elsewhere than the others: {each.place}" for each in odd[:4]),
            *([f"and so do {names(odd[4:])}"] if odd[4:] else []),
            *(f"{names(group)}: {group[0].place}" for group in together(rest)[:_GROUPS]),
            *([] if odd else ["no rank stands out"]),
            *self.missing,
            "see the stacks above; raise hang_timeout if the ranks may be silent for so long",
        ]
        first = odd[0] if odd else None
        return JobStalled(
            "\n".join(told),
            host=first.host if first else None,
            rank=first.rank if first else None,
            log_tail=tuple(map(str, first.frames[:_TAIL])) if first else (),
        )


async def findings(
    ref: JobRef, agents: Mapping[str, HostAgent], states: Sequence[NodeState]
) -> Findings:
    """Ask all hosts where their ranks stand; what cannot be had is told as such."""
    found = Findings(servers=frozenset(rank for each in states for rank in each.ref.servers))

    async def ask(state: NodeState) -> dict[str, Any] | None:
        node = state.ref
        if not state.running:
            return None
        try:
            return await agents[node.host.name].call(
                "dump", within=_ANSWER, job=ref.job_id, attempt=ref.attempt, node=node.node_rank
            )
        except TrainingError as error:
            found.missing.append(f"no stacks of {node.host.name}: {error.message}")
            return None

    answers = await asyncio.gather(*(ask(state) for state in states))
    for state, answer in zip(states, answers, strict=True):
        found.stands += _stands(state, answer, elastic=ref.min_nodes is not None)
        found.evidence += _evidence(state.ref, answer or {})
    return found


def _stands(
    state: NodeState, answer: Mapping[str, Any] | None, *, elastic: bool = False
) -> list[Stand]:
    host = state.ref.host.name
    if elastic:  # which ranks a node has now is for its agent to tell
        told = (answer or {"ranks": {}})["ranks"]
        running = {int(rank): each for rank, each in told.items() if each["state"] == "running"}
        return [stand(rank, host, each) for rank, each in sorted(running.items())]
    if answer is not None:
        return [stand(rank, host, answer["ranks"].get(str(rank))) for rank in state.ref.ranks]
    told = {exit_["rank"]: {"state": "exited", **exit_} for exit_ in state.exits}
    return [
        stand(rank, host, told[rank]) if rank in told else Stand(rank, host)
        for rank in state.ref.ranks
    ]


def _evidence(node: NodeRef, answer: Mapping[str, Any]) -> Iterator[str]:
    name = node.host.name
    for rank, collectives in sorted(answer.get("nccl", {}).items()):
        yield f"rank {rank} on {name}: last collectives: {'; '.join(collectives)}"
    yield from (f"{name}: {line}" for line in answer.get("gpus", ()))
    if errors := answer.get("errors"):
        yield f"{name}: ranks could not be prepared for this: {errors.strip().splitlines()[-1]}"


def _shown(stand: Stand, *, alone: bool) -> list[str]:
    """Return the stack of one rank; where it is the only one there, of all its threads."""
    lines = stand.text.strip().splitlines() if alone else [str(frame) for frame in stand.frames]
    left_out = len(lines) - _LINES
    return lines if left_out <= 0 else [f"… {left_out} lines", *lines[-_LINES:]]


def names(stands: Sequence[Stand]) -> str:
    """Return ranks with their hosts."""
    if len(stands) == 1:
        return stands[0].name
    hosts = ", ".join(dict.fromkeys(each.host for each in stands))
    return f"ranks {', '.join(str(each.rank) for each in stands)} on {hosts}"
