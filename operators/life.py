"""The life of one try of a task: whatever launches its ranks, and wherever it is watched."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import secrets
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowTaskTimeout

from distributed_training.errors import (
    DeliveryFailed,
    HostUnreachable,
    JobCancelled,
    JobTimeout,
    SlotsBusy,
    TrainingError,
)
from distributed_training.operators.delivery import Delivery, destination, output_paths
from distributed_training.operators.memory import JobMemory
from distributed_training.operators.showing import Showing
from distributed_training.run.collect import reason
from distributed_training.run.job import History, JobRef
from distributed_training.run.launch import launch
from distributed_training.run.queue import Queue, Waiting, in_the_way, tickets, withdraw
from distributed_training.run.standing import standing
from distributed_training.run.stop import Stopped, stop
from distributed_training.run.watch import Outcome, Watcher
from distributed_training.triggers.job import JobTrigger
from distributed_training.triggers.page import WorkerPage
from distributed_training.triggers.queue import QueueTrigger
from distributed_training.triggers.tasklog import TaskLog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from airflow.sdk import Context

    from distributed_training.operators.base import TrainingOperator
    from distributed_training.plan import JobSpec, Offer, Plan
    from distributed_training.run.agents import HostAgent
    from distributed_training.snapshot import Snapshot

Result = TypeVar("Result")

# A job that ends within these seconds never pays for a deferral, which takes about five.
WATCH_FIRST = 10.0
TRIGGER_FAILURES = 3  # a trigger that fails more often than this fails the task
RACES = 5  # plans that are made anew because another job has taken the slots meanwhile


class Life:
    """One try of a task, in one process of a worker.

    :param task: what is asked for, with its templates rendered
    :param context: Airflow's, of this try
    """

    def __init__(self, task: TrainingOperator, context: Context) -> None:
        self._task = task
        self._context = context
        self._memory = JobMemory(context)
        self._showing = Showing(context["ti"], task.log.warning)
        self._cancel: Callable[[], object] | None = None
        self._had_room = False  # whether all slots of the last plan were free when it was made

    # Ways into it

    def begin(self) -> Any:
        """Launch the job, or go on with what the last try left; watch it, hand on its result."""
        return self._settle(self._take_over() or self._train(History()))

    def resume(self, outcome: Outcome) -> Any:
        """Go on after the triggerer has watched the job to its end."""
        return self._settle(outcome)

    def launch_queued(self, waiting: Waiting, error: TrainingError | None) -> Any:
        """Launch a job that waited in the triggerer, or fail because it did so in vain."""
        if error:
            self._give_up(error)
        return self._settle(self._train(waiting.history, waiting=waiting))

    def replace_trigger(self, error: Exception) -> NoReturn:
        """Defer again after a trigger has failed: what it waited for goes on."""
        ref = self._memory.last()
        if ref is None:
            raise error
        if self._memory.another_trigger_failure() > TRIGGER_FAILURES:
            self._run(self._end(ref, "its triggers fail again and again"))
            raise error
        self._task.log.warning("The trigger failed (%s); another one takes over", error)
        if waiting := self._memory.waiting():
            self._defer_to_queue(waiting)
        self._defer(ref)

    def cancel(self) -> None:
        """End the job: a user acts on the running task, or the worker is stopped."""
        if self._cancel:
            self._cancel()

    # Launch and watch

    def _train(
        self, history: History, *, before: JobRef | None = None, waiting: Waiting | None = None
    ) -> Outcome | JobRef:
        """Launch and watch; return the outcome, or the running job if it takes longer.

        :param before: the attempt of this try that was lost, if there was one
        :param waiting: since when the job has waited for slots, if it has
        """
        with self._task.source() as source:
            spec = self._task.spec(self._context, source)
            if self._task.outputs:
                destination(str(self._task.output_dir))
            resumes = history.restarts > 0 or self._memory.is_retry()
            spec = dataclasses.replace(spec, resumes=resumes)
            # A job never shrinks unasked: a spare host takes the place of a lost one.
            if before and spec.min_nodes is None:
                spec = dataclasses.replace(spec, nnodes=len(before.nodes))
            if waiting:
                spec = dataclasses.replace(
                    spec,
                    nnodes=waiting.nnodes,
                    min_nodes=waiting.min_nodes,
                    since=waiting.since,
                )
            try:
                return self._run(self._attempt(spec, source, history))
            except SlotsBusy as error:
                if self._had_room and history.races < RACES:
                    return self._race_again(error, history, before, waiting)
                if spec.since is None:
                    self._showing.failed(spec, error)
                    raise
                refused = error
            except TrainingError as error:
                self._showing.failed(spec, error)
                raise
            self._showing.waiting(spec, refused.message)
        return self._wait(waiting or self._waiting(spec, history), refused)

    def _race_again(
        self,
        lost: SlotsBusy,
        history: History,
        before: JobRef | None,
        waiting: Waiting | None,
    ) -> Outcome | JobRef:
        """Plan anew: another job has taken the slots since the offers; there may be more."""
        self._task.log.info("Another job was faster: %s", lost.message.partition(";")[0])
        races = history.races + 1
        self._run(asyncio.sleep(random.uniform(0, races)))  # two that race do not meet for ever
        again = dataclasses.replace(history, races=races)
        return self._train(again, before=before, waiting=waiting)

    async def _attempt(
        self, spec: JobSpec, source: Snapshot | None, history: History
    ) -> Outcome | JobRef:
        owner = secrets.token_hex(8)
        planned: list[JobRef] = []

        def record(plan: Plan, offers: Sequence[Offer]) -> None:
            planned.append(JobRef.of(plan, time.time(), history))
            self._had_room = not any(in_the_way(plan, offers))
            self._memory.remember(planned[0])
            self._showing.planned(plan, offers, planned[0])
            self._log_lines(plan.describe())

        async with self._task.agents(self._task.hook.fleet.hosts) as agents:
            asked = list(agents.values())
            async with tickets(spec, asked):
                await launch(
                    spec,
                    asked,
                    owner=owner,
                    snapshot=source,
                    attempt=history.attempt,
                    planned=record,
                    log=self._task.log.info,
                )
            return await self._watch(planned[0], agents, owner)

    async def _watch(
        self, ref: JobRef, agents: Mapping[str, HostAgent], owner: str
    ) -> Outcome | JobRef:
        """Watch to the end; if the task may defer, for a short while only."""
        self._memory.enter("watching")
        log, shown = self._task.log.info, TaskLog.of_worker(self._context["ti"])
        page = WorkerPage(self._context["ti"])
        watcher = Watcher(ref, agents, owner, log, self._deadline(), shown, page)
        try:
            async with asyncio.timeout(WATCH_FIRST if self._task.deferrable else None):
                return await watcher.watch()
        except TimeoutError:
            return watcher.ref
        except asyncio.CancelledError:
            await stop(ref, agents, reason="the task was ended", owner=owner)
            raise

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run to the end, or until :meth:`cancel`, which comes from a signal handler."""

        async def main() -> Result:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            return await coroutine

        try:
            return asyncio.run(main())
        except asyncio.CancelledError:
            raise JobCancelled("the task was ended while its job was in the worker") from None
        except AirflowTaskTimeout as error:  # in the worker, Airflow has a clock of its own
            raise JobTimeout(
                "the job was ended because the task's execution_timeout was over"
            ) from error
        finally:
            self._cancel = None

    # What follows

    def _settle(self, ended: Outcome | JobRef) -> Any:
        """Defer, start once more, fail or return the result, as it fits what has happened."""
        if isinstance(ended, JobRef):
            self._defer(ended)
        history = self._task.budget().after(ended.error, ended.ref.history)
        if history and (again := self._start_again(ended, history)):
            return self._settle(again)
        returned = self._task.returns(self._run(self._deliver(ended)))
        self._hand_on(returned)
        return returned[BaseXCom.XCOM_RETURN_KEY]

    def _hand_on(self, returned: dict[str, Any]) -> None:
        """Push the result and note that; if it cannot be, a retry has to find it undelivered.

        Airflow pushes it as well, but only after the task, when nothing can be noted any more.

        :param returned: by the key of XCom; None is no value there
        """
        try:
            for key, value in returned.items() if self._task.do_xcom_push else ():
                if value is not None:
                    self._context["ti"].xcom_push(key, value)
        except Exception as error:  # a backend of XCom raises what its library likes
            raise DeliveryFailed(
                f"the job ended well, but Airflow does not take what the task returns: "
                f"{reason(error)}; a retry hands it on without training anew"
            ) from error
        self._memory.enter("delivered")

    def _start_again(self, ended: Outcome, history: History) -> Outcome | JobRef | None:
        """Start the ranks once more; None if they cannot be, and the failure is final."""
        self._log_lines(str(ended.error).splitlines())
        self._task.log.warning("All ranks are started again: restart %d", history.attempt)
        try:
            return self._train(history, before=ended.ref)
        except JobCancelled:
            raise
        except TrainingError as error:
            self._task.log.error("The ranks cannot be started again: %s", error)
            return None

    async def _deliver(self, outcome: Outcome) -> dict[str, Any]:
        task = self._task
        async with self._task.agents([node.host for node in outcome.ref.nodes]) as agents:
            paths = output_paths(task.outputs)
            output_dir, log_dir = (
                place and str(place) for place in (task.output_dir, task.log_dir)
            )
            delivery = Delivery(agents, paths, output_dir, log_dir, task.log, task.secrets())
            return await delivery.of(outcome)

    def _defer(self, ref: JobRef) -> NoReturn:
        self._memory.enter("deferred")
        self._task.log.info("The job goes on; the triggerer watches it, and its log follows there")
        trigger = JobTrigger(self._task.fleet_conn_id, ref.to_dict(), self._deadline())
        self._task.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer() does not return")

    # What the last try left

    def _take_over(self) -> Outcome | JobRef | None:
        """Adopt what an earlier try left, if this one is its retry; else see that it is gone.

        :raises HostUnreachable: a host cannot say whether the earlier job still runs there
        """
        ref = self._memory.last()
        if ref is None:
            return None
        state = self._run(self._standing(ref)) if self._memory.is_retry() else None
        if state == "running":
            self._task.log.info("Job %s of the last try goes on; it is watched now", ref.job_id)
            return self._run(self._adopt(ref))
        if state == "success":
            self._task.log.info("Job %s of the last try has succeeded meanwhile", ref.job_id)
            return Outcome(ref, None, time.time())
        self._fence(ref)
        return None

    async def _standing(self, ref: JobRef) -> str | None:
        async with self._task.agents([node.host for node in ref.nodes]) as agents:
            return await standing(ref, agents)

    async def _adopt(self, ref: JobRef) -> Outcome | JobRef:
        async with self._task.agents([node.host for node in ref.nodes]) as agents:
            return await self._watch(ref, agents, secrets.token_hex(8))

    def _fence(self, ref: JobRef) -> None:
        """End what an earlier try left running: there are never two jobs for one task."""
        for node in self._run(self._end(ref, "another try of the task begins")):
            if node.state in ("ended", "unknown") or self._memory.has_lapsed(ref):
                continue
            name = node.node.host.name
            raise HostUnreachable(
                f"{name}: job {ref.job_id} of an earlier try may still run there ({node.state}: "
                f"{node.detail}); {self._memory.lapse(ref)}",
                host=name,
            )

    async def _end(self, ref: JobRef, reason: str) -> list[Stopped]:
        async with self._task.agents([node.host for node in ref.nodes]) as agents:
            return await stop(ref, agents, reason=reason, wait=ref.grace_period)

    # Waiting for slots

    def _waiting(self, spec: JobSpec, history: History) -> Waiting:
        assert spec.since is not None
        until = spec.since + self._task.queue_seconds()
        deadline = self._deadline() or until
        return Waiting.of(spec, self._task.hook.fleet.hosts, history, min(until, deadline))

    def _wait(self, waiting: Waiting, refused: SlotsBusy) -> Outcome | JobRef:
        """Defer until the job can be launched; a task that may not defer waits here."""
        if time.time() >= waiting.until:
            self._run(self._leave_queue(waiting))
            self._give_up(waiting.given_up(refused.message))
        if self._task.deferrable:
            self._task.log.info("%s", refused.message)
            self._memory.waits(waiting)
            self._defer_to_queue(waiting)
        if error := self._run(self._wait_here(waiting)):
            self._give_up(error)
        return self._train(waiting.history, waiting=waiting)

    def _defer_to_queue(self, waiting: Waiting) -> NoReturn:
        self._task.log.info("The job waits for slots in the triggerer; no worker waits with it")
        trigger = QueueTrigger(self._task.fleet_conn_id, waiting.to_dict())
        self._task.defer(trigger=trigger, method_name="launch_queued")
        raise AssertionError("defer() does not return")

    async def _wait_here(self, waiting: Waiting) -> SlotsBusy | None:
        try:
            async with self._task.agents(waiting.hosts) as agents:
                return await Queue(waiting, list(agents.values()), self._task.log.info).wait()
        except asyncio.CancelledError:
            await self._leave_queue(waiting)
            raise

    async def _leave_queue(self, waiting: Waiting) -> None:
        async with self._task.agents(waiting.hosts) as agents:
            await withdraw(waiting.spec, list(agents.values()))

    def _give_up(self, error: TrainingError) -> NoReturn:
        deadline = self._deadline()
        if deadline is not None and time.time() >= deadline:
            raise JobTimeout(f"the task's execution_timeout is over: {error.message}")
        raise error

    def _deadline(self) -> float | None:
        """Return ``time.time()`` at which the try is over: Airflow's limit ends with deferral."""
        start, limit = self._context["ti"].start_date, self._task.execution_timeout
        if limit is None or start is None:
            return None
        return float((start + limit).timestamp())

    def _log_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._task.log.info("%s", line)
