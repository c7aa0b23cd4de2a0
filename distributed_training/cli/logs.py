"""`logs`: what the ranks of a job have printed, from the hosts themselves."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from distributed_training.cli.jobs import no_such_job, nodes_of
from distributed_training.cli.session import ask
from distributed_training.errors import PlanError

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Mapping

    from distributed_training.cli.session import Session
    from distributed_training.run.agents import HostAgent

Line = tuple[float, str]  # when, and what


async def logs(session: Session, given: argparse.Namespace) -> int:
    """Print a job's lines by time; with --follow as they come, until it has ended."""
    async with session.agents() as agents:
        answers = await ask(agents, {name: {} for name in agents}, "status")
        nodes = nodes_of(answers, given.job)
        if not nodes:
            answers.tell_missing()
            raise no_such_job(given.job, answers)
        last = max(int(node["attempt"]) for node in nodes)
        ranks = {int(rank) for node in nodes for rank in node["ranks"]}
        if given.rank is not None and given.rank not in ranks:
            known = ", ".join(map(str, sorted(ranks))) or "none that has begun"
            raise PlanError(f"job {given.job} has no rank {given.rank} on these hosts: {known}")
        found: list[Line] = []

        async def read(node: dict[str, Any]) -> None:
            async for line in _lines(agents[node["host"]], node, given):
                print(line[1], flush=True) if given.follow else found.append(line)

        await asyncio.gather(*(read(node) for node in nodes if int(node["attempt"]) == last))
    for _, text in sorted(found, key=lambda line: line[0]):
        print(text)
    return answers.tell_missing()


async def _lines(
    agent: HostAgent, node: Mapping[str, Any], given: argparse.Namespace
) -> AsyncIterator[Line]:
    """Yield the lines of a node, without keeping its job alive as a watcher would."""
    key = {name: node[name] for name in ("job", "attempt", "node")}
    async with agent.stream("attach", offset=0, renews=False, **key) as stream:
        left = int(stream.answer["size"])
        while (given.follow or left > 0) and (raw := await stream.lines()):
            for line in raw:
                record = json.loads(line)
                left -= (len(line) + 1) if "t" in record else 0
                if text := _text(record, str(node["host"]), given.rank):
                    yield record["t"], text
            if given.follow:
                await stream.say("here")


def _text(record: Mapping[str, Any], host: str, rank: int | None) -> str | None:
    if record["k"] == "log" and rank in (None, record["r"]):
        source = record["r"] if isinstance(record["r"], str) else f"rank {record['r']}"
        return f"[{source} {host}] {record['m']}"
    if record["k"] in ("note", "ended") and rank is None:
        text = record["m"] if record["k"] == "note" else f"ended: {record['reason']}"
        return f"[{host}] {text}"
    return None
