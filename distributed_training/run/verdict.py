"""The one cause of a job's end, told from what its nodes journalled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributed_training.errors import (
    GpuFault,
    GroupNotFormed,
    InterconnectNotUsed,
    JobCancelled,
    JobTimeout,
    NodeLost,
    OutOfMemory,
    PortTaken,
    RankFailed,
    TrainingError,
)
from distributed_training.run.elastic import has_regrouped, is_whole, left, may_go_on
from distributed_training.run.story import TAIL_LINES, how, is_daemon, story
from distributed_training.run.symptoms import (
    PORT_TAKEN,
    has_aborted,
    has_reason,
    last_words,
    was_pulled_down,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distributed_training.run.job import JobRef, NodeRef

TIMED_OUT = "execution_timeout"
_AT_ONCE = 1.0  # seconds by which clocks, or what notices an end, may differ
_SAME_EVENT = 10.0  # seconds in which a rank that failed pulls others down


@dataclass(slots=True)
class NodeState:
    """What is known of one node of a running job."""

    ref: NodeRef
    exits: list[Mapping[str, Any]] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None  # the node's last record
    lost: str | None = None  # why it was given up
    clock: float = 0.0  # seconds by which the host's clock is ahead of ours

    @property
    def running(self) -> bool:
        """Whether its end is yet to come."""
        return self.ended is None and self.lost is None

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The first exit on this node that was a failure of its own."""
        return min(filter(_failed, self.exits), key=_precedence, default=None)


def verdict(ref: JobRef, nodes: Sequence[NodeState], stopped: str | None) -> TrainingError | None:
    """Return why the job failed, or None if every rank of every node did what it should.

    :param stopped: why we asked the job to end, if we did
    """
    if ended := _ended_by_us(nodes, stopped):
        return ended
    if is_whole(ref, nodes):
        return None
    lost = _first_lost(ref, nodes)
    # An elastic job that has gone on without a host did not fail for want of it.
    missed = lost if not (may_go_on(ref, nodes) and has_regrouped(ref, nodes)) else None
    those = left(ref, nodes) if lost and not missed else nodes
    first = _first_failure(those)
    if first and not (missed and _may_follow(first[1])):
        return _rank_failed(ref, *first, [*_launcher(nodes, first[1]), *_others(nodes, first[1])])
    if missed:
        return missed
    for node in those:
        if node.ended and node.ended["state"] != "success":
            return _ended_otherwise(node.ref, node.ended, stopped)
    return lost


def _ended_by_us(nodes: Sequence[NodeState], stopped: str | None) -> TrainingError | None:
    """Return why the job was ended before any part of it failed, as far as we know at once."""
    if stopped == TIMED_OUT:
        return JobTimeout("the job was ended because the task's execution_timeout was over")
    for node in nodes:
        if node.ended and node.ended.get("over_sockets"):
            return _over_sockets(node.ref.host.name, node.ended["over_sockets"])
    return None


def is_port_taken(error: TrainingError) -> bool:
    """Return whether a rank failed because somebody took its port between lease and use."""
    return isinstance(error, PortTaken)


def _first_failure(nodes: Sequence[NodeState]) -> tuple[NodeState, Mapping[str, Any]] | None:
    """Return the failure that caused the others, which need not have been noticed first."""
    exits = sorted(((node, exit_) for node in nodes for exit_ in node.exits), key=_cause)
    first = next((pair for pair in exits if _failed(pair[1])), None)
    if first is None:
        return None
    if first[1]["rank"] is None or was_pulled_down(first[1]):
        found = next((pair for pair in exits if _explains(pair, first)), None)
        return found or next((pair for pair in exits if _launched(pair, first)), first)
    if first[1]["signal"] == "SIGKILL":  # as an mpirun kills all ranks for one of them
        return next((pair for pair in exits if has_aborted(pair[1])), first)
    return first


def _explains(
    pair: tuple[NodeState, Mapping[str, Any]], follower: tuple[NodeState, Mapping[str, Any]]
) -> bool:
    """Return whether an exit has a reason of its own, and pulled the follower down with it."""
    exit_ = pair[1]
    if exit_["rank"] is None or _cause(pair)[1] - _cause(follower)[1] > _SAME_EVENT:
        return False
    return has_reason(exit_) if exit_["by_us"] else _failed(exit_) and not was_pulled_down(exit_)


def _launched(
    pair: tuple[NodeState, Mapping[str, Any]], follower: tuple[NodeState, Mapping[str, Any]]
) -> bool:
    """Return whether a launcher was killed, and its ranks with it."""
    exit_ = pair[1]
    killed = exit_["rank"] is None and not exit_["by_us"] and exit_["signal"] == "SIGKILL"
    return killed and _cause(pair)[1] <= _cause(follower)[1] + _AT_ONCE


def _may_follow(exit_: Mapping[str, Any]) -> bool:
    """Return whether the loss of a host may have ended a rank, or what launches ranks."""
    launcher = exit_["rank"] is None and exit_.get("name") == "launcher"
    return launcher or was_pulled_down(exit_) or not (exit_.get("traceback") or exit_.get("oom"))


def _first_lost(ref: JobRef, nodes: Sequence[NodeState]) -> NodeLost | None:
    those = left(ref, nodes)
    for node in nodes:
        if node.ended is None:
            return _lost(node.ref, node.lost or "it was not watched to its end")
        if node.ended["state"] == "lost":
            return _lost(node.ref, f"its agent is gone: {node.ended['reason']}")
        if node not in those:
            return _lost(node.ref, node.lost or node.ended["reason"])
    return None


def _failed(exit_: Mapping[str, Any]) -> bool:
    own = not (exit_["by_us"] or exit_.get("again"))
    return own and bool(exit_["code"] or exit_["signal"] or exit_.get("alone"))


def _precedence(exit_: Mapping[str, Any]) -> tuple[bool, float]:
    """A launcher ends because a rank of it did; it is the cause only if no rank is."""
    return exit_["rank"] is None, exit_["t"]


def _cause(failed: tuple[NodeState, Mapping[str, Any]]) -> tuple[bool, float]:
    """Order failures of several hosts by one clock."""
    node, exit_ = failed
    is_launcher, when = _precedence(exit_)
    return is_launcher, when - node.clock


def _launcher(nodes: Sequence[NodeState], first: Mapping[str, Any]) -> Iterator[str]:
    """Yield the last words of a launcher of which only a daemon elsewhere has failed."""
    if not is_daemon(first):
        return
    for node in nodes:
        for exit_ in node.exits:
            if exit_.get("name") == "launcher" and exit_["tail"]:
                yield f"the launcher on {node.ref.host.name} said:"
                yield from (f"  {line}" for line in exit_["tail"][-TAIL_LINES:])


def _others(nodes: Sequence[NodeState], first: Mapping[str, Any]) -> Iterator[str]:
    """Yield which ranks failed after the first, because of it or on their own."""
    followers = [
        f"rank {e['rank']} on {node.ref.host.name} {how(e)}"
        for node in nodes
        for e in node.exits
        if e is not first
        and e["rank"] is not None
        and (e["code"] or e["signal"])
        and not (e["by_us"] or e.get("again"))
    ]
    if followers:
        yield "failed with it: " + "; ".join(followers)


def _rank_failed(
    ref: JobRef, node: NodeState, record: Mapping[str, Any], more: Sequence[str]
) -> RankFailed:
    faults = (node.ended or {}).get("gpu_faults", ())
    role = node.ref.role(record["rank"])
    lines = [*story({**record, "role": role}, node.ref.host.name, faults), *more]
    lines.append(f"all other ranks of job {ref.job_id} were ended")
    return _kind(record, faults)(
        "\n".join(lines),
        host=node.ref.host.name,
        rank=record["rank"],
        exit_code=record["code"],
        signal=record["signal"],
        log_tail=tuple(record["tail"][-TAIL_LINES:]),
    )


def _kind(record: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]) -> type[RankFailed]:
    if record.get("alone"):
        return GroupNotFormed
    if record.get("oom"):
        return OutOfMemory
    if any(fault["hardware"] for fault in faults):
        return GpuFault
    # torchrun's last word is that it has not met the others; what it says before tells why.
    words = last_words(record) if record["rank"] is not None else "\n".join(record["tail"])
    return PortTaken if PORT_TAKEN.search(words) else RankFailed


def _lost(node: NodeRef, why: str) -> NodeLost:
    name = node.host.name
    return NodeLost(
        f"{name} was lost: {why}; see whether the host was restarted, was cut off or ran out of "
        f"memory (`last reboot` and `dmesg` on {name})",
        host=name,
    )


def _over_sockets(name: str, told: str) -> InterconnectNotUsed:
    return InterconnectNotUsed(
        f"interconnect='infiniband', but ranks on {name} talk to other hosts over sockets: {told}\n"
        "The files network-nccl-* among the logs, and the lines of UCX, tell why InfiniBand was "
        f"passed over; run `ibstat` and `ibv_devinfo` on {name}, or set interconnect='auto'",
        host=name,
    )


def _ended_otherwise(node: NodeRef, ended: Mapping[str, Any], stopped: str | None) -> TrainingError:
    name = node.host.name
    if ended["state"] == "stopped" or stopped:
        why = stopped or ended["reason"]
        return JobCancelled(f"the job was ended on {name}: {why}", host=name)
    return RankFailed(
        f"{name}: not every rank came to its own end: {ended['reason']}; see the log above and "
        "the launcher's output",
        host=name,
    )
