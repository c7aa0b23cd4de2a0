"""Ways to run a script in every rank: ours, and those that a user would pick instead.

Each runs `SCRIPT` on all hosts of a stage, hands on every line as it comes, and returns whether all
ranks ended well, within `LIMIT`. All connections are new ones, as in a worker that has just begun a
task.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from bench.stage import HOSTS, RANKS, SCRIPT, SLOTS, Stage
from distributed_training.hooks.fleet import FleetHook
from distributed_training.plan import JobSpec, Program
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch
from distributed_training.run.watch import Watcher
from distributed_training.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

Seen = Callable[[str], None]
Way = Callable[[Stage, Seen], bool]

LIMIT = 180  # seconds after which a run is given up
PORT = 29500  # torchrun's own default


def ours(stage: Stage, seen: Seen, **fields: Any) -> bool:
    """Launch and watch through the hook of the connection, as an operator does in its worker.

    :param fields: of the specification
    :raises TrainingError: it was not started
    """
    try:
        return asyncio.run(asyncio.wait_for(_ours(stage, seen, fields), LIMIT))
    except TimeoutError:
        seen(f"given up after {LIMIT} s")
        return False


async def _ours(stage: Stage, seen: Seen, fields: dict[str, Any]) -> bool:
    hook, owner = FleetHook(), secrets.token_hex(8)
    with snapshot(stage.folder) as source:
        spec = JobSpec(
            job_id=f"bench-{owner}",
            program=Program("script", SCRIPT),
            source=source.sha256,
            python=str(stage.python),
            **fields,
        )
        async with hook.own_agents(hook.fleet.hosts) as agents:
            plan = await launch(spec, list(agents.values()), owner=owner, snapshot=source, log=seen)
            outcome = await Watcher(JobRef.of(plan), agents, owner, seen).watch()
    if outcome.error:
        seen(str(outcome.error))
    return outcome.error is None


def mpirun(stage: Stage, seen: Seen) -> bool:
    """Run the `mpirun` of the ranks' environment on the first host; it logs in to the others."""
    slots = ",".join(f"{host.name}:{SLOTS}" for host in stage.fleet.hosts)
    command = [stage.program("mpirun"), "--host", slots, "-np", str(RANKS), str(stage.python)]
    head = stage.fleet.hosts[0]
    return _run([*stage.fleet.ssh(head), *command, SCRIPT], seen)


def torchrun(stage: Stage, seen: Seen) -> bool:
    """Run one `torchrun` on each host, all at once."""
    hosts = stage.fleet.hosts
    with ThreadPoolExecutor(HOSTS) as pool:
        running = [pool.submit(_run, _node(stage, number), seen) for number in range(len(hosts))]
    return all(node.result() for node in running)


def _node(stage: Stage, number: int) -> list[str]:
    """Return what starts the torchrun of one host."""
    hosts = stage.fleet.hosts
    size = [f"--nnodes={len(hosts)}", f"--nproc-per-node={SLOTS}", f"--node-rank={number}"]
    meet = [f"--master-addr={hosts[0].address}", f"--master-port={PORT}"]
    return [*stage.fleet.ssh(hosts[number]), stage.program("torchrun"), *size, *meet, SCRIPT]


def _run(command: Sequence[str], seen: Seen) -> bool:
    process = subprocess.Popen(
        ["timeout", str(LIMIT), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            seen(line.rstrip("\n"))
    return process.returncode == 0
