"""Reserve slots on every node and make it ready, before any rank is started."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from distributed_training.agent import site
from distributed_training.environment import SCRUB, node_environment
from distributed_training.errors import PreflightFailed
from distributed_training.launchers import LAUNCHERS
from distributed_training.run.agents import HostAgent, on_all
from distributed_training.run.job import JobRef
from distributed_training.run.mesh import mesh
from distributed_training.run.preflight import Preflight
from distributed_training.run.stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from distributed_training.plan import Node, Offer, Plan
    from distributed_training.run.finding import Finding
    from distributed_training.snapshot import Snapshot

_SETUP_TIMEOUT = 3600.0  # seconds: `setup` may install packages
_FIRST_FAILED = 2.0  # seconds that other nodes get to report faults of their own


async def prepare(
    plan: Plan,
    agents: Mapping[str, HostAgent],
    owner: str,
    offers: Sequence[Offer],
    snapshot: Snapshot | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> None:
    """Make all nodes ready at once; if any cannot be, release all.

    :param agents: by name of the host
    :param owner: token of the watcher to be
    :param offers: that the plan was made of, also of hosts that it leaves out
    :param log: told what the preflight found, line by line
    :raises TrainingError: every failing host is named
    """
    chosen = {node.host.name for node in plan.nodes}
    offered = {offer.host.name: offer for offer in offers if offer.host.name in chosen}
    preflight = Preflight.of(offered.values(), infiniband=plan.needs_infiniband)

    async def ready(node: Node) -> None:
        name = node.host.name
        _refuse(preflight.failures(name))
        if snapshot is not None and not offered[name].has_source:
            await _send(agents[name], snapshot)
        request = _request(plan, node, owner)
        answer = await agents[name].call("prepare", within=_SETUP_TIMEOUT, **request)
        versions[name] = answer["versions"]

    versions: dict[str, Mapping[str, str]] = {}
    first = [asyncio.ensure_future(ready(plan.head)), asyncio.ensure_future(_meet(plan, agents))]
    others = [asyncio.ensure_future(ready(node)) for node in plan.nodes[1:]]
    try:
        await _settled(first, others)
        await on_all([*first, *others], _result)
        preflight.add_versions({name: versions[name] for name in offered})
        _refuse(preflight.failures())
    except BaseException:
        await stop(JobRef.of(plan), agents, reason="not started", wait=plan.spec.grace_period)
        raise
    for line in preflight.summary():
        log(line)


async def _settled(
    first: Sequence[asyncio.Future[None]], others: Sequence[asyncio.Future[None]]
) -> None:
    """Wait for all; without a head or a network, the others wait in vain and are let go."""
    done, _ = await asyncio.wait(first, return_when=asyncio.FIRST_EXCEPTION)
    failed = any(each.exception() for each in done)
    rest = [each for each in (*first, *others) if not each.done()]
    if rest:
        await asyncio.wait(rest, timeout=_FIRST_FAILED if failed else None)
    for each in rest:
        if not each.done():
            each.cancel()


async def _meet(plan: Plan, agents: Mapping[str, HostAgent]) -> None:
    """Connect every pair of nodes; each reaches for the head, where ranks will meet, by itself."""
    nodes = {node.host.name: node for node in plan.nodes}
    if len(nodes) > 1:
        addresses = {name: node.address for name, node in nodes.items()}
        own = {name: agents[name] for name in nodes}
        _refuse(await mesh(own, addresses, spare={plan.head.host.name}))


def _refuse(failures: Sequence[Finding]) -> None:
    if failures:
        raise PreflightFailed("\n".join(map(str, failures)), host=failures[0].host)


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


def _ports(plan: Plan, node: Node) -> list[int]:
    """Return the ports at which ranks of a node will listen, and on the head where all meet."""
    meet = [plan.master_port] if node is plan.head else []
    return list(dict.fromkeys([*meet, *(rank.port for rank in node.ranks if rank.port)]))


def _wants_site(plan: Plan) -> bool:
    """Return whether something of ours runs in the ranks' Python before their program."""
    wanted = plan.group_size is not None or plan.spec.hang_timeout is not None
    return wanted or LAUNCHERS[plan.spec.launcher].needs_site


def _request(plan: Plan, node: Node, owner: str) -> dict[str, Any]:
    spec = plan.spec
    is_head = node is plan.head
    packages = LAUNCHERS[spec.launcher].packages
    script = [str(spec.program.value)] if spec.program.kind == "script" else []
    return {
        **spec.wish(node.host.name, [slot.name for slot in node.slots]),
        "attempt": plan.attempt,
        "node": node.node_rank,
        "ports": _ports(plan, node),
        "reach": None if is_head else [plan.head.address, plan.master_port],
        "source": spec.source,
        "setup": spec.setup,
        "setup_env": node_environment(plan, node),
        "secrets": list(spec.secrets),
        "scrub": list(SCRUB),
        "check_files": script,
        "python": spec.python if packages or spec.program.kind != "command" else None,
        "packages": list(packages),
        "mpirun": None if plan.mpirun is None else dataclasses.asdict(plan.mpirun),
        "infiniband": plan.needs_infiniband,
        "orphan_timeout": spec.orphan_timeout,
        "site": site() if _wants_site(plan) else None,
        "grace_period": spec.grace_period,
        "stop_signal": spec.stop_signal,
        "keep_days": spec.keep_days,
        "max_bytes": spec.disk_cap,
        "owner": owner,
    }
