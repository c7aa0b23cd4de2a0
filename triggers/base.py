"""What all triggers share: agents over shared connections, kills that get through, late events."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseTrigger

from distributed_training.hooks.fleet import FleetHook
from distributed_training.triggers.tasklog import TaskLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from airflow.models.taskinstance import TaskInstance

    from distributed_training.fleet import Host
    from distributed_training.run.agents import HostAgent

# An event that comes a few seconds after the deferral can fail the task: Airflow's supervisor
# notices the end of the deferring process up to 5 s late. https://github.com/apache/airflow/issues/72716
HOLD = 10.0  # seconds

# Kills that outlive their trigger: Airflow cancels `on_kill` after about a second.
kills: set[asyncio.Task[None]] = set()


class FleetTrigger(BaseTrigger):
    """Waits for something on the hosts of a fleet, and ends it when a user acts on the task.

    :param fleet_conn_id: connection of the fleet
    """

    def __init__(self, fleet_conn_id: str) -> None:
        super().__init__()
        self.fleet_conn_id = fleet_conn_id
        self._task_log: TaskLog | None = None

    @property
    def task_instance(self) -> TaskInstance | None:
        """The task that waits for this trigger; set before its first line is logged."""
        return super().task_instance

    @task_instance.setter
    def task_instance(self, value: TaskInstance | None) -> None:
        BaseTrigger.task_instance.fset(self, value)  # type: ignore[attr-defined]
        if value is not None:
            self._task_log = TaskLog.of_trigger(value)

    async def on_kill(self) -> None:
        """Clean up on the hosts, in a task that Airflow's second of patience does not cut."""
        task = asyncio.ensure_future(self._kill())
        kills.add(task)
        task.add_done_callback(kills.discard)
        await asyncio.shield(task)

    @abstractmethod
    async def _kill(self) -> None: ...

    @asynccontextmanager
    async def _agents(self, hosts: Sequence[Host]) -> AsyncIterator[dict[str, HostAgent]]:
        """Yield the agents of hosts by name, over connections shared with other triggers."""
        hook = await FleetHook.load(self.fleet_conn_id)
        async with hook.agents(hosts) as agents:
            yield agents


@asynccontextmanager
async def held() -> AsyncIterator[None]:
    """Last long enough for Airflow to take an event."""
    loop = asyncio.get_running_loop()
    born = loop.time()
    yield
    await asyncio.sleep(max(0.0, born + HOLD - loop.time()))
