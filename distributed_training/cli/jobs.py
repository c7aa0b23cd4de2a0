"""`ps` and `stop`: the jobs on the hosts of a fleet."""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from distributed_training.cli.session import Answers, ask
from distributed_training.errors import PlanError, TrainingError
from distributed_training.run.preflight import aligned

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from distributed_training.cli.session import Session
    from distributed_training.run.agents import HostAgent

_PATIENCE = 20.0  # seconds beyond a job's grace period until its end counts as not confirmed
COLUMNS = ("job", "attempt", "host", "state", "age", "task", "ranks", "slots", "alive", "watched")


async def ps(session: Session, given: argparse.Namespace) -> int:
    """Print every node of every job that has not ended, or of all jobs."""
    answers = await session.ask_all("status")
    nodes = [node for node in nodes_of(answers) if given.all or is_live(node)]
    if given.json:
        print(json.dumps(nodes, indent=2))
    elif nodes:
        print("\n".join(aligned([COLUMNS, *map(row, nodes)])))
    elif answers.given:
        where = ", ".join(answers.given)
        print(f"no job is left on {where}" if given.all else f"no job runs on {where}")
    return answers.tell_missing()


def nodes_of(answers: Answers, job: str | None = None) -> list[dict[str, Any]]:
    """Return the nodes of one job or of all, the oldest job first."""
    nodes = [
        {"host": host, **node}
        for host, answer in answers.given.items()
        for node in answer["jobs"]
        if job in (None, node["job"])
    ]
    began: dict[Any, float] = {}
    for node in nodes:
        key = (node["job"], node["attempt"])
        began[key] = min(began.get(key, time.time()), node["since"] or time.time())
    return sorted(nodes, key=lambda n: (began[n["job"], n["attempt"]], n["job"], int(n["node"])))


def is_live(node: Mapping[str, Any]) -> bool:
    """Tell whether anything of a node may still run."""
    return node["ended"] is None or bool(node["survivors"])


def row(node: Mapping[str, Any]) -> list[str]:
    """Return a node as words."""
    now = time.time()
    state = node["ended"]["state"] if node["ended"] else node["state"]
    return [
        str(node["job"]),
        str(node["attempt"]),
        str(node["host"]),
        str(state),
        _age(now - node["since"]) if node["since"] else "-",
        _task(node["label"] or {}),
        ",".join(sorted(node["ranks"], key=int)) or "-",
        ",".join(node["slots"] or ()) or "-",
        str(node["survivors"]),
        _age(now - node["watched"]) + " ago" if node["watched"] and not node["ended"] else "-",
    ]


def _task(label: Mapping[str, str]) -> str:
    if "dag" not in label:
        return "-"
    mapped = "" if label["map_index"] == "-1" else f"[{label['map_index']}]"
    return f"{label['dag']}.{label['task']}{mapped} {label['run']} try {label['try']}"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


async def stop(session: Session, given: argparse.Namespace) -> int:
    """End jobs, and say on which hosts it is not certain that nothing is left."""
    async with session.agents() as agents:
        answers = await ask(agents, {name: {} for name in agents}, "status")
        nodes = nodes_of(answers, given.job)
        if given.job and not nodes and not answers.missing:
            raise no_such_job(given.job, answers)
        live = [node for node in nodes if is_live(node)]
        results = await asyncio.gather(*(_end(agents[node["host"]], node) for node in live))
    for line, _ in results:
        print(line)
    if not live and not answers.missing:
        print("nothing of it runs any more" if given.job else "no job runs on these hosts")
    doubtful = [node["host"] for node, (_, sure) in zip(live, results, strict=True) if not sure]
    return answers.tell_missing() | _confirm([*answers.missing, *doubtful])


def _confirm(hosts: Iterable[str]) -> int:
    names = ", ".join(dict.fromkeys(hosts))
    if names:
        print(f"not confirmed stopped: {names}", file=sys.stderr)
    return 1 if names else 0


async def _end(agent: HostAgent, node: Mapping[str, Any]) -> tuple[str, bool]:
    """End a node; return what became of it, and whether it is certain that nothing is left."""
    wait = float(node["grace_period"] or 0) + _PATIENCE
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    key = {name: node[name] for name in ("job", "attempt", "node")}
    begin = f"{node['job']} on {node['host']}"
    try:
        answer = await agent.call(
            "stop", within=wait + _PATIENCE, wait=wait, reason=f"by {who}", owner=None, **key
        )
    except TrainingError as error:
        return f"{begin}: {error.message}", False
    left = answer["survivors"]
    sure = answer["state"] in ("ended", "unknown") and not left
    return f"{begin}: {answer['state']}, {left} processes left", sure


def no_such_job(job: str, answers: Answers) -> PlanError:
    """Return the error that names the jobs there are."""
    known = dict.fromkeys(str(node["job"]) for node in nodes_of(answers))
    return PlanError(
        f"no host has a job {job!r}; `ps --all` shows those there are: {', '.join(known) or 'none'}"
    )
