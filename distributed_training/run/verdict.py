"""The one cause of a job's end, told from what its nodes journalled."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributed_training.errors import (
    JobCancelled,
    JobTimeout,
    NodeLost,
    OutOfMemory,
    RankFailed,
    TrainingError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distributed_training.run.job import JobRef, NodeRef

TAIL_LINES = 30  # of the failing rank's log that the verdict repeats
TIMED_OUT = "execution_timeout"
_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use", re.ASCII)


@dataclass(slots=True)
class NodeState:
    """What is known of one node of a running job."""

    ref: NodeRef
    exits: list[Mapping[str, Any]] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None  # the node's last record
    lost: str | None = None  # why it was given up
    clock: float = 0.0  # seconds by which the host's clock is ahead of ours

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The first exit on this node that was a failure of its own."""
        return min(filter(_failed, self.exits), key=_precedence, default=None)


def verdict(ref: JobRef, nodes: Sequence[NodeState], stopped: str | None) -> TrainingError | None:
    """Return why the job failed, or None if every rank of every node did what it should.

    :param stopped: why we asked the job to end, if we did
    """
    first = _first_failure(nodes)
    if stopped == TIMED_OUT:
        return JobTimeout("the job was ended because the task's execution_timeout was over")
    if first:
        return _rank_failed(ref, *first, _followers(nodes, first[1]))
    for node in nodes:
        if node.ended is None:
            return _lost(node.ref, node.lost or "it was not watched to its end")
        if node.ended["state"] == "lost":
            return _lost(node.ref, f"its agent is gone: {node.ended['reason']}")
    for node in nodes:
        if node.ended and node.ended["state"] != "success":
            return _ended_otherwise(node.ref, node.ended, stopped)
    return None


def is_port_taken(error: TrainingError) -> bool:
    """Return whether a rank failed because somebody took its port between lease and use."""
    return isinstance(error, RankFailed) and any(map(_PORT_TAKEN.search, error.log_tail))


def _first_failure(nodes: Sequence[NodeState]) -> tuple[NodeState, Mapping[str, Any]] | None:
    failed = [(node, failure) for node in nodes if (failure := node.failure)]
    return min(failed, key=_cause, default=None)


def _failed(exit_: Mapping[str, Any]) -> bool:
    return not exit_["by_us"] and bool(exit_["code"] or exit_["signal"])


def _precedence(exit_: Mapping[str, Any]) -> tuple[bool, float]:
    """A launcher ends because a rank of it did; it is the cause only if no rank is."""
    return exit_["rank"] is None, exit_["t"]


def _cause(failed: tuple[NodeState, Mapping[str, Any]]) -> tuple[bool, float]:
    """Order failures of several hosts by one clock."""
    node, exit_ = failed
    is_launcher, when = _precedence(exit_)
    return is_launcher, when - node.clock


def _followers(nodes: Sequence[NodeState], first: Mapping[str, Any]) -> list[str]:
    """Return ranks that failed after the first, because of it or on their own."""
    return [
        f"rank {e['rank']} on {node.ref.host.name} {_how(e)}"
        for node in nodes
        for e in node.exits
        if e is not first
        and e["rank"] is not None
        and (e["code"] or e["signal"])
        and not e["by_us"]
    ]


def _rank_failed(
    ref: JobRef, node: NodeState, record: Mapping[str, Any], followers: list[str]
) -> RankFailed:
    host, rank, tail = node.ref.host.name, record["rank"], tuple(record["tail"][-TAIL_LINES:])
    who = "the launcher" if rank is None else f"rank {rank}"
    lines = [f"{who} on {host} {_how(record)} after {record['elapsed']:.1f} s"]
    if record.get("oom"):
        lines[0] += ": the kernel ended it because memory ran out"
    elif record["signal"] == "SIGKILL":
        lines[0] += " (often the kernel's, for want of memory: see `dmesg` on the host)"
    if tail:
        lines += ["its log ends:", *(f"  {line}" for line in tail)]
    if followers:
        lines.append("failed after it: " + "; ".join(followers))
    lines.append(f"all other ranks of job {ref.job_id} were ended")
    kind = OutOfMemory if record.get("oom") else RankFailed
    return kind(
        "\n".join(lines),
        host=host,
        rank=rank,
        exit_code=record["code"],
        signal=record["signal"],
        log_tail=tail,
    )


def _how(record: Mapping[str, Any]) -> str:
    if record["signal"]:
        return f"was ended by {record['signal']}"
    return f"exited with status {record['code']}"


def _lost(node: NodeRef, why: str) -> NodeLost:
    name = node.host.name
    return NodeLost(
        f"{name} was lost: {why}; see whether the host was restarted, was cut off or ran out of "
        f"memory (`last reboot` and `dmesg` on {name})",
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
