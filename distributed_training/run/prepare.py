"""Reserve slots on every node and make it ready, before any rank is started."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from distributed_training.environment import SCRUB, node_environment
from distributed_training.run.agents import HostAgent, on_all
from distributed_training.run.job import JobRef
from distributed_training.run.stop import stop

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from distributed_training.plan import Node, Plan
    from distributed_training.snapshot import Snapshot

_SETUP_TIMEOUT = 3600.0  # seconds: `setup` may install packages
_HEAD_FAILED = 2.0  # seconds that other nodes get to report faults of their own


async def prepare(
    plan: Plan,
    agents: Mapping[str, HostAgent],
    owner: str,
    snapshot: Snapshot | None = None,
    present: Collection[str] = (),
) -> None:
    """Make all nodes ready at once; if any cannot be, release all.

    :param agents: by name of the host
    :param owner: token of the watcher to be
    :param present: names of the hosts that have the snapshot already
    :raises TrainingError: every failing host is named
    """

    async def ready(node: Node) -> None:
        agent = agents[node.host.name]
        if snapshot is not None and node.host.name not in present:
            await _send(agent, snapshot)
        await agent.call("prepare", within=_SETUP_TIMEOUT, **_request(plan, node, owner))

    head = asyncio.ensure_future(ready(plan.head))
    others = [asyncio.ensure_future(ready(node)) for node in plan.nodes[1:]]
    try:
        await _head_first(head, others)
        await on_all([head, *others], _result)
    except BaseException:
        await stop(JobRef.of(plan), agents, reason="not started", wait=plan.spec.grace_period)
        raise


async def _head_first(head: asyncio.Future[None], others: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all; without a head, the others wait in vain to reach it and are let go."""
    await asyncio.wait([head])
    if others:
        await asyncio.wait(others, timeout=_HEAD_FAILED if head.exception() else None)
    for other in others:
        if not other.done():
            other.cancel()


async def _result(done: asyncio.Future[None]) -> None:
    try:
        await done
    except asyncio.CancelledError:
        if not done.cancelled():  # it is we who are cancelled, not a node that was let go
            raise


async def _send(agent: HostAgent, snapshot: Snapshot) -> None:
    await agent.call(
        "put_source",
        body=snapshot.stream(),
        within=None,
        source=snapshot.sha256,
        size=snapshot.size,
    )


def _request(plan: Plan, node: Node, owner: str) -> dict[str, Any]:
    spec = plan.spec
    is_head = node is plan.head
    script = [str(spec.program.value)] if spec.program.kind == "script" else []
    return {
        **spec.wish(node.host.name, [slot.name for slot in node.slots]),
        "attempt": plan.attempt,
        "node": node.node_rank,
        "port": plan.master_port if is_head else None,
        "reach": None if is_head else [plan.head.address, plan.master_port],
        "source": spec.source,
        "setup": spec.setup,
        "setup_env": node_environment(plan, node),
        "scrub": list(SCRUB),
        "check_files": script,
        "python": spec.python if spec.program.kind != "command" else None,
        "orphan_timeout": spec.orphan_timeout,
        "grace_period": spec.grace_period,
        "stop_signal": spec.stop_signal,
        "owner": owner,
    }
