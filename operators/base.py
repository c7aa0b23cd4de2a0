"""The life of a training task in Airflow, whatever launches its ranks."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout

from distributed_training.errors import (
    HostUnreachable,
    JobCancelled,
    JobTimeout,
    PlanError,
    SlotsBusy,
    TrainingError,
)
from distributed_training.hooks.fleet import FleetHook
from distributed_training.operators.arguments import (
    job_id,
    job_label,
    optional_seconds,
    program,
    seconds,
    switch,
    variables,
    whole_number,
)
from distributed_training.operators.delivery import Delivery
from distributed_training.operators.memory import JobMemory
from distributed_training.plan import JobSpec, Plan
from distributed_training.run.agents import HostAgent
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch, propose
from distributed_training.run.queue import Queue, Waiting, tickets, withdraw
from distributed_training.run.stop import Stopped, stop
from distributed_training.run.verdict import is_port_taken
from distributed_training.run.watch import Outcome, Watcher
from distributed_training.snapshot import Snapshot, snapshot
from distributed_training.triggers.job import JobTrigger
from distributed_training.triggers.queue import QueueTrigger

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from airflow.sdk import Context

    from distributed_training.fleet import Host

# A job that ends within these seconds never pays for a deferral, which takes about five.
WATCH_FIRST = 10.0
TRIGGER_FAILURES = 3  # a trigger that fails more often than this fails the task


class TrainingOperator(BaseOperator):
    """Runs one training job on the hosts of a fleet; subclasses choose the launcher.

    :param fleet_conn_id: connection of the fleet
    :param script: file that each rank runs with ``python``: in ``source_dir`` or on the host
    :param module: module that each rank runs with ``python -m``
    :param command: any program: a list, or a string that a shell on the host runs for each rank
    :param arguments: of the program: a list, a string, or a dict (``{"epochs": 5}`` becomes
        ``--epochs 5``); passed literally
    :param source_dir: local folder that is sent to every node and is the working directory there
    :param nnodes: number of nodes (all selected hosts)
    :param nproc_per_node: ranks on each node; ``"auto"`` is one for each slot of the host
    :param hosts: selection from the fleet: ``gpu1@gpu2:0,2``, or a list of names
    :param hostfile: local host list to use instead of the connection's
    :param oversubscribe: allow more ranks than slots
    :param env: extra environment of the ranks
    :param host_env: extra environment by host, over ``env``
    :param python: interpreter on the hosts (the connection's, else ``python3``)
    :param setup: shell commands run once on each node before the ranks
    :param master_port: port at which the ranks meet (a free one)
    :param queue_timeout: seconds to wait, deferred, for slots that other jobs hold; the job that
        has waited longest goes first
    :param start_timeout: seconds until every rank's program is executed
    :param stop_signal: signal that asks ranks to save and end
    :param grace_period: seconds from that signal to SIGKILL
    :param host_timeout: seconds of silence after which a connection is made anew
    :param orphan_timeout: seconds that nobody watches the job until its agents end it;
        None: they never do
    :param outputs: paths to bring back from the head, relative to the working directory
    :param output_dir: where to bring them: a local path or any object store URL
    :param log_dir: where the whole log of each rank goes at the end
    :param deferrable: free the worker while the job runs; with False, a worker that is stopped
        ends the job
    """

    template_fields: Collection[str] = (
        "fleet_conn_id", "script", "module", "command", "arguments", "source_dir", "nnodes",
        "nproc_per_node", "hosts", "hostfile", "oversubscribe", "env", "host_env", "python",
        "setup", "master_port", "queue_timeout", "start_timeout", "stop_signal", "grace_period",
        "host_timeout", "orphan_timeout", "outputs", "output_dir", "log_dir",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"env": "json", "setup": "bash"}
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        fleet_conn_id: str = FleetHook.default_conn_name,
        script: str | None = None,
        module: str | None = None,
        command: str | Sequence[str] | None = None,
        arguments: Sequence[Any] | Mapping[str, Any] | str = (),
        source_dir: str | None = None,
        nnodes: int | str | None = None,
        nproc_per_node: int | str = "auto",
        hosts: str | Sequence[str] | None = None,
        hostfile: str | None = None,
        oversubscribe: bool | str = False,
        env: Mapping[str, str] | None = None,
        host_env: Mapping[str, Mapping[str, str]] | None = None,
        python: str | None = None,
        setup: str | None = None,
        master_port: int | str | None = None,
        queue_timeout: float | str = 0,
        start_timeout: float | str = 300,
        stop_signal: str = "SIGTERM",
        grace_period: float | str = 30,
        host_timeout: float | str = 60,
        orphan_timeout: float | str | None = 900,
        outputs: Sequence[str] = (),
        output_dir: str | None = None,
        log_dir: str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fleet_conn_id = fleet_conn_id
        self.script = script
        self.module = module
        self.command = command
        self.arguments = arguments
        self.source_dir = source_dir
        self.nnodes = nnodes
        self.nproc_per_node = nproc_per_node
        self.hosts = hosts
        self.hostfile = hostfile
        self.oversubscribe = oversubscribe
        self.env = env
        self.host_env = host_env
        self.python = python
        self.setup = setup
        self.master_port = master_port
        self.queue_timeout = queue_timeout
        self.start_timeout = start_timeout
        self.stop_signal = stop_signal
        self.grace_period = grace_period
        self.host_timeout = host_timeout
        self.orphan_timeout = orphan_timeout
        self.outputs = outputs
        self.output_dir = output_dir
        self.log_dir = log_dir
        self.deferrable = deferrable
        self._cancel: Callable[[], None] | None = None

    def execute(self, context: Context) -> Any:
        """Start the job and watch it for a while; then defer, unless it has ended by then."""
        self._fence(context)
        return self._settle(context, self._train(context, attempt=0))

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Take the outcome from the triggerer."""
        return self._settle(context, Outcome.from_dict(event))

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Resume; a trigger that failed is replaced, since its job goes on."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            raise
        except TaskDeferralError as error:
            self._replace_trigger(context, error)

    def on_kill(self) -> None:
        """End the job: a user acts on the running task, or the worker is stopped."""
        if self._cancel:
            self._cancel()

    def dry_run(self) -> Plan:  # type: ignore[override]  # Airflow's returns nothing
        """Ask the hosts, print the plan and return it; nothing is changed on any host."""

        async def ask(spec: JobSpec) -> Plan:
            async with self._agents(self._hook.fleet.hosts) as agents:
                return (await propose(spec, list(agents.values())))[0]

        with self._source() as source:
            plan = asyncio.run(ask(self._spec({}, source)))
        self._log_lines(plan.describe())
        return plan

    # What is asked for

    launcher: str

    def _spec(self, context: Context | Mapping[str, Any], source: Snapshot | None) -> JobSpec:
        """Return the validated specification of this try.

        :raises PlanError: an argument cannot be right
        """
        if self.outputs and not self.output_dir:
            raise PlanError("outputs= names what to bring back, but output_dir= does not say where")
        return JobSpec(
            job_id=job_id(context),
            label=job_label(context),
            launcher=self.launcher,
            program=program(self.script, self.module, self.command, self.arguments),
            nnodes=whole_number("nnodes", self.nnodes),
            nproc_per_node=whole_number("nproc_per_node", self.nproc_per_node),
            oversubscribe=switch("oversubscribe", self.oversubscribe),
            env=variables("env", self.env),
            host_env={
                host: variables(f"host_env[{host!r}]", env)
                for host, env in (self.host_env or {}).items()
            },
            python=self.python or self._hook.python or "python3",
            setup=self.setup,
            source=source.sha256 if source else None,
            master_port=whole_number("master_port", self.master_port),
            since=time.time() if seconds("queue_timeout", self.queue_timeout) else None,
            stop_signal=self.stop_signal,
            grace_period=seconds("grace_period", self.grace_period),
            start_timeout=seconds("start_timeout", self.start_timeout),
            host_timeout=seconds("host_timeout", self.host_timeout),
            orphan_timeout=optional_seconds("orphan_timeout", self.orphan_timeout),
        )

    @cached_property
    def _hook(self) -> FleetHook:
        return FleetHook(self.fleet_conn_id, hostfile=self.hostfile, hosts=self.hosts)

    @contextmanager
    def _source(self) -> Iterator[Snapshot | None]:
        """Yield the packed source folder, if there is one."""
        if not self.source_dir:
            yield None
            return
        with snapshot(Path(self.source_dir)) as taken:
            self.log.info("%s", taken.summary())
            yield taken

    # The job on its hosts

    @asynccontextmanager
    async def _agents(self, hosts: Sequence[Host]) -> AsyncIterator[dict[str, HostAgent]]:
        """Yield the agents of hosts by name, over connections that end with the block."""
        agents = {
            host.name: HostAgent(self._hook.transport(host), self._hook.work_dir) for host in hosts
        }
        try:
            yield agents
        finally:
            await asyncio.gather(*(agent.transport.close() for agent in agents.values()))

    def _train(
        self, context: Context, attempt: int, waiting: Waiting | None = None
    ) -> Outcome | JobRef:
        """Launch and watch; return the outcome, or the running job if it takes longer."""
        with self._source() as source:
            spec = self._spec(context, source)
            if waiting:
                spec = dataclasses.replace(spec, since=waiting.since)
            try:
                return asyncio.run(self._attempt(context, spec, source, attempt))
            except SlotsBusy as error:
                if spec.since is None:
                    raise
                refused = error
        return self._wait(context, waiting or self._waiting(context, spec, attempt), refused)

    async def _attempt(
        self, context: Context, spec: JobSpec, source: Snapshot | None, attempt: int
    ) -> Outcome | JobRef:
        self._let_kill_cancel()
        owner = secrets.token_hex(8)
        ref: JobRef | None = None

        def planned(plan: Plan) -> None:
            nonlocal ref
            ref = JobRef.of(plan, time.time())
            JobMemory(context["task_state_store"]).remember(ref)
            self._log_lines(plan.describe())

        async with self._agents(self._hook.fleet.hosts) as agents:
            try:
                async with tickets(spec, list(agents.values())):
                    await launch(
                        spec,
                        list(agents.values()),
                        owner=owner,
                        snapshot=source,
                        attempt=attempt,
                        planned=planned,
                    )
                assert ref is not None
                watcher = Watcher(ref, agents, owner, self.log.info, self._deadline(context))
                return await self._watch_first(watcher)
            except asyncio.CancelledError:
                if ref is not None:
                    await stop(ref, agents, reason="the task was ended", owner=owner)
                raise JobCancelled("the task was ended while its job was watched here") from None

    async def _watch_first(self, watcher: Watcher) -> Outcome | JobRef:
        """Watch to the end; if the task may defer, for a short while only."""
        try:
            async with asyncio.timeout(WATCH_FIRST if self.deferrable else None):
                return await watcher.watch()
        except TimeoutError:
            return watcher.ref

    def _let_kill_cancel(self) -> None:
        """Let :meth:`on_kill`, which runs in a signal handler, cancel what is running now."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        self._cancel = cancel

    # Waiting for slots

    def launch_queued(self, context: Context, event: dict[str, Any]) -> Any:
        """Launch a job that waited in the triggerer, or fail because it did so in vain."""
        self._log_lines(event["news"])
        waiting = Waiting.from_dict(event["waiting"])
        if event["error"]:
            self._give_up(context, TrainingError.from_dict(event["error"]))
        return self._settle(context, self._train(context, waiting.attempt, waiting))

    def _waiting(self, context: Context, spec: JobSpec, attempt: int) -> Waiting:
        assert spec.since is not None
        until = spec.since + seconds("queue_timeout", self.queue_timeout)
        deadline = self._deadline(context) or until
        return Waiting.of(spec, self._hook.fleet.hosts, attempt, min(until, deadline))

    def _wait(self, context: Context, waiting: Waiting, refused: SlotsBusy) -> Outcome | JobRef:
        """Defer until the job can be launched; a task that may not defer waits here."""
        if time.time() >= waiting.until:
            asyncio.run(self._leave_queue(waiting))
            self._give_up(context, waiting.given_up(refused.message))
        if self.deferrable:
            self.log.info("%s", refused.message)
            JobMemory(context["task_state_store"]).waits(waiting)
            self._defer_to_queue(waiting)
        if error := asyncio.run(self._wait_here(waiting)):
            self._give_up(context, error)
        return self._train(context, waiting.attempt, waiting)

    def _defer_to_queue(self, waiting: Waiting) -> NoReturn:
        self.log.info("The job waits for slots in the triggerer; no worker waits with it")
        trigger = QueueTrigger(self.fleet_conn_id, waiting.to_dict())
        self.defer(trigger=trigger, method_name="launch_queued")
        raise AssertionError("defer() does not return")

    async def _wait_here(self, waiting: Waiting) -> SlotsBusy | None:
        self._let_kill_cancel()
        try:
            async with self._agents(waiting.hosts) as agents:
                return await Queue(waiting, list(agents.values()), self.log.info).wait()
        except asyncio.CancelledError:
            await self._leave_queue(waiting)
            raise JobCancelled("the task was ended while its job waited for slots") from None

    async def _leave_queue(self, waiting: Waiting) -> None:
        async with self._agents(waiting.hosts) as agents:
            await withdraw(waiting.spec, list(agents.values()))

    def _give_up(self, context: Context, error: TrainingError) -> NoReturn:
        deadline = self._deadline(context)
        if deadline is not None and time.time() >= deadline:
            raise JobTimeout(f"the task's execution_timeout is over: {error.message}")
        raise error

    def _settle(self, context: Context, ended: Outcome | JobRef) -> Any:
        """Defer, start once more, fail or return the result, as it fits what has happened."""
        if isinstance(ended, JobRef):
            self._defer(context, ended)
        if ended.error and is_port_taken(ended.error) and self._may_take_another_port(ended.ref):
            self.log.warning("The port of the ranks was taken; starting them with another one")
            return self._settle(context, self._train(context, ended.ref.attempt + 1))
        return asyncio.run(self._deliver(ended))

    def _may_take_another_port(self, ref: JobRef) -> bool:
        return ref.attempt == 0 and whole_number("master_port", self.master_port) is None

    def _defer(self, context: Context, ref: JobRef) -> NoReturn:
        self.log.info("The job goes on; the triggerer watches it, and its log follows there")
        self.defer(
            trigger=JobTrigger(self.fleet_conn_id, ref.to_dict(), self._deadline(context)),
            method_name="resume",
        )
        raise AssertionError("defer() does not return")

    async def _deliver(self, outcome: Outcome) -> dict[str, Any]:
        async with self._agents([node.host for node in outcome.ref.nodes]) as agents:
            delivery = Delivery(agents, self.outputs, self.output_dir, self.log_dir, self.log)
            return await delivery.of(outcome)

    # Earlier tries, and triggers that fail

    def _fence(self, context: Context) -> None:
        """End what an earlier try left running: there are never two jobs for one task.

        :raises HostUnreachable: a host cannot say whether the earlier job still runs there
        """
        ref = JobMemory(context["task_state_store"]).last()
        if ref is None:
            return
        for node in asyncio.run(self._end(ref, "another try of the task begins")):
            if node.state not in ("ended", "unknown"):
                name = node.node.host.name
                raise HostUnreachable(
                    f"{name}: job {ref.job_id} of an earlier try may still run there "
                    f"({node.state}: {node.detail}); bring the host back, or take it out of the "
                    "fleet and delete `job` from the task's state store",
                    host=name,
                )

    async def _end(self, ref: JobRef, reason: str) -> list[Stopped]:
        async with self._agents([node.host for node in ref.nodes]) as agents:
            return await stop(ref, agents, reason=reason, wait=ref.grace_period)

    def _replace_trigger(self, context: Context, error: TaskDeferralError) -> NoReturn:
        memory = JobMemory(context["task_state_store"])
        ref = memory.last()
        if ref is None:
            raise error
        if memory.another_trigger_failure() > TRIGGER_FAILURES:
            asyncio.run(self._end(ref, "its triggers fail again and again"))
            raise error
        self.log.warning("The trigger failed (%s); another one takes over", error)
        if waiting := memory.waiting():
            self._defer_to_queue(waiting)
        self._defer(context, ref)

    def _deadline(self, context: Context) -> float | None:
        """Return ``time.time()`` at which the try is over: Airflow's limit ends with deferral."""
        start = context["ti"].start_date
        if self.execution_timeout is None or start is None:
            return None
        return float((start + self.execution_timeout).timestamp())

    def _log_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.log.info("%s", line)
