"""Waits for slots in the triggerer, so that no worker has to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from distributed_training.run.queue import Queue, Waiting, withdraw
from distributed_training.triggers.base import FleetTrigger, held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class QueueTrigger(FleetTrigger):
    """Waits until a job can be launched, or has waited long enough.

    Its event has the keys ``waiting`` (as below) and ``error`` (why it gave up, or None).

    :param fleet_conn_id: connection of the fleet
    :param waiting: :meth:`Waiting.to_dict` of the job
    """

    def __init__(self, fleet_conn_id: str, waiting: dict[str, Any]) -> None:
        super().__init__(fleet_conn_id)
        self.waiting = waiting

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what rebuilds this trigger; it is stored as it is, so it holds no secret."""
        return (
            "distributed_training.triggers.queue.QueueTrigger",
            {"fleet_conn_id": self.fleet_conn_id, "waiting": self.waiting},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait; yield how it ended and return at once."""
        waiting = Waiting.from_dict(self.waiting)
        async with held(), self._agents(waiting.hosts) as agents:
            error = await Queue(waiting, list(agents.values()), self.log.info).wait()
        failure = error.to_dict() if error else None
        yield TriggerEvent({"waiting": self.waiting, "error": failure})

    async def _kill(self) -> None:
        """Take the tickets back."""
        waiting = Waiting.from_dict(self.waiting)
        async with self._agents(waiting.hosts) as agents:
            await withdraw(waiting.spec, list(agents.values()))
