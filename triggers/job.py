"""Waits for a job in the triggerer, and ends it when a user acts on the deferred task."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagRunStateResult, GetDagRunState
from airflow.triggers.base import TriggerEvent

from distributed_training.run.job import JobRef
from distributed_training.run.stop import stop
from distributed_training.run.watch import Watcher
from distributed_training.triggers.base import FleetTrigger, held
from distributed_training.triggers.page import TriggerPage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# A triggerer that was frozen ends what Airflow has given to another one, as if a user had ended
# it: https://github.com/apache/airflow/pull/73454. In so many seconds, that one is watching.
REPLACEMENT = 15.0
RUN_EVERY = 30.0  # seconds between two looks at the DAG run
ENDED = "The job has ended; a worker goes on, and its log follows there"


class JobTrigger(FleetTrigger):
    """Watches one job to its end; the event is the :class:`Outcome` as a dictionary.

    :param fleet_conn_id: connection of the fleet
    :param ref: :meth:`JobRef.to_dict` of the job
    :param deadline: ``time.time()`` at which the job is ended, if it still runs
    """

    def __init__(self, fleet_conn_id: str, ref: dict[str, Any], deadline: float | None) -> None:
        super().__init__(fleet_conn_id)
        self.ref = ref
        self.deadline = deadline
        self._owner = secrets.token_hex(8)
        self._watcher: Watcher | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what rebuilds this trigger; it is stored as it is, so it holds no secret."""
        return (
            "distributed_training.triggers.job.JobTrigger",
            {"fleet_conn_id": self.fleet_conn_id, "ref": self.ref, "deadline": self.deadline},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the job; yield its outcome and return at once."""
        ref = JobRef.from_dict(self.ref)
        async with held(), self._agents([node.host for node in ref.nodes]) as agents:
            log, deadline, ti = self.log.info, self.deadline, self.task_instance
            page = TriggerPage(ti) if ti else None
            self._watcher = Watcher(ref, agents, self._owner, log, deadline, self._task_log, page)
            run = asyncio.ensure_future(self._end_with_run(self._watcher))
            try:
                outcome = await self._watcher.watch()
            finally:
                run.cancel()
            log(ENDED)
            if self._task_log:
                await self._task_log.reached(ENDED)
        yield TriggerEvent(outcome.to_dict())

    async def _end_with_run(self, watcher: Watcher) -> None:
        """End the job when its DAG run is over.

        A run that times out, or is failed by a user, in the moment that its task defers, leaves
        the task deferred: Airflow calls nobody.
        """
        while ti := self.task_instance:
            await asyncio.sleep(RUN_EVERY)
            if await run_state(ti.dag_id, ti.run_id) in ("failed", "success"):
                await watcher.end("its DAG run is over")
                return

    async def _kill(self) -> None:
        """End the job unless another triggerer has taken it over; then it is not ours to end."""
        ref = JobRef.from_dict(self.ref)
        async with self._agents([node.host for node in ref.nodes]) as agents:
            new = self._watcher is None or not self._watcher.has_watched
            if new or (self._watcher and self._watcher.may_be_replaced):
                await asyncio.sleep(REPLACEMENT)
            reason, owner = "a user ended the task", self._owner
            for node in await stop(ref, agents, reason=reason, owner=owner, unwatched=new):
                self.log.info("%s: %s %s", node.node.host.name, node.state, node.detail)


async def run_state(dag_id: str, run_id: str) -> str | None:
    """Return the state of a DAG run, as the triggerer is told by Airflow."""
    answer = await task_runner.SUPERVISOR_COMMS.asend(GetDagRunState(dag_id=dag_id, run_id=run_id))
    return answer.state if isinstance(answer, DagRunStateResult) else None
