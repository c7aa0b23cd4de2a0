"""From a specification to running ranks: offer, plan, prepare, start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_training import launchers
from distributed_training.run.offer import offers
from distributed_training.run.prepare import prepare
from distributed_training.run.start import start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distributed_training.plan import JobSpec, Offer, Plan
    from distributed_training.run.agents import HostAgent
    from distributed_training.snapshot import Snapshot


async def propose(
    spec: JobSpec,
    agents: Sequence[HostAgent],
    attempt: int = 0,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[Plan, list[Offer]]:
    """Return the plan that the hosts' offers allow, and these.

    Nothing is changed on any host. Where the job leaves a choice, hosts may be missing.

    :param log: told which are
    """
    replies = await offers(
        agents,
        spec.source,
        lambda host: {**spec.wish(host, None), "mpirun": _mpirun(spec, host)},
        checkpoint_dir=spec.checkpoint_dir if spec.resumes else None,
        needed=spec.min_nodes or spec.nnodes,
        log=log,
    )
    return launchers.plan(spec, replies, attempt), replies


def _mpirun(spec: JobSpec, host: str) -> dict[str, str | None] | None:
    """Return what a host must know to find its mpirun, if the job needs one."""
    if spec.mpi is None:
        return None
    path = {**spec.env, **spec.host_env.get(host, {})}.get("PATH")
    return {"program": spec.mpi.program, "python": spec.python, "path": path}


async def launch(
    spec: JobSpec,
    agents: Sequence[HostAgent],
    *,
    owner: str,
    snapshot: Snapshot | None = None,
    attempt: int = 0,
    planned: Callable[[Plan, Sequence[Offer]], None] = lambda plan, offers: None,
    log: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Start a job on some of the hosts, wholly or not at all.

    :param owner: token of the watcher to be
    :param planned: called before anything is changed on a host, to record what is intended, and
        what that was made of
    :param log: told what the preflight found, line by line
    :raises TrainingError: nothing was left running
    """
    plan, replies = await propose(spec, agents, attempt, log)
    planned(plan, replies)
    by_name = {agent.host.name: agent for agent in agents}
    await prepare(plan, by_name, owner, replies, snapshot, log)
    await start(plan, by_name)
    return plan
