"""Waits for a job in the triggerer, and ends it when a user acts on the deferred task."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from distributed_training.hooks.fleet import FleetHook
from distributed_training.run.agents import HostAgent
from distributed_training.run.job import JobRef
from distributed_training.run.stop import stop
from distributed_training.run.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

# An event that comes a few seconds after the deferral can fail the task: Airflow's supervisor
# notices the end of the deferring process up to 5 s late. https://github.com/apache/airflow/issues/72716
HOLD = 10.0  # seconds

# Kills that outlive their trigger: Airflow cancels `on_kill` after about a second.
_kills: set[asyncio.Task[None]] = set()


class JobTrigger(BaseTrigger):
    """Watches one job to its end; the event is the :class:`Outcome` as a dictionary.

    :param fleet_conn_id: connection of the fleet
    :param ref: :meth:`JobRef.to_dict` of the job
    :param deadline: ``time.time()`` at which the job is ended, if it still runs
    """

    def __init__(self, fleet_conn_id: str, ref: dict[str, Any], deadline: float | None) -> None:
        super().__init__()
        self.fleet_conn_id = fleet_conn_id
        self.ref = ref
        self.deadline = deadline
        self._owner = secrets.token_hex(8)
        self._watched = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what rebuilds this trigger; it is stored as it is, so it holds no secret."""
        return (
            "distributed_training.triggers.job.JobTrigger",
            {"fleet_conn_id": self.fleet_conn_id, "ref": self.ref, "deadline": self.deadline},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the job; yield its outcome and return at once."""
        loop = asyncio.get_running_loop()
        born = loop.time()
        ref = JobRef.from_dict(self.ref)
        async with self._agents(ref) as agents:
            watcher = Watcher(ref, agents, self._owner, self.log.info, self.deadline)
            self._watched = True
            outcome = await watcher.watch()
        await asyncio.sleep(max(0.0, born + HOLD - loop.time()))
        yield TriggerEvent(outcome.to_dict())

    async def on_kill(self) -> None:
        """End the job on its hosts, in a task that Airflow's second of patience does not cut."""
        task = asyncio.ensure_future(self._kill())
        _kills.add(task)
        task.add_done_callback(_kills.discard)
        await asyncio.shield(task)

    async def _kill(self) -> None:
        """End the job unless another triggerer has taken it over; then it is not ours to end."""
        ref = JobRef.from_dict(self.ref)
        async with self._agents(ref) as agents:
            owner = self._owner if self._watched else None
            for node in await stop(ref, agents, reason="a user ended the task", owner=owner):
                self.log.info("%s: %s %s", node.node.host.name, node.state, node.detail)

    @asynccontextmanager
    async def _agents(self, ref: JobRef) -> AsyncIterator[Mapping[str, HostAgent]]:
        hook = await FleetHook.load(self.fleet_conn_id)
        async with hook.connections([node.host for node in ref.nodes]) as transports:
            yield {
                name: HostAgent(transport, hook.work_dir) for name, transport in transports.items()
            }
