"""The life of a training task in Airflow, whatever launches its ranks."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, ObjectStoragePath
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout

from distributed_training.errors import PlanError, TrainingError
from distributed_training.hooks.fleet import FleetHook
from distributed_training.operators.arguments import (
    choice,
    count,
    fill_in,
    given,
    job_id,
    job_label,
    node_range,
    optional_seconds,
    program,
    seconds,
    signal_name,
    switch,
    text,
    variables,
    variables_by_host,
    whole_number,
)
from distributed_training.operators.delivery import output_paths
from distributed_training.operators.life import Life
from distributed_training.operators.masking import secrets_in
from distributed_training.operators.restart import Budget
from distributed_training.plan import INTERCONNECTS, JobSpec, Plan, Program
from distributed_training.run.launch import propose
from distributed_training.run.queue import Waiting
from distributed_training.run.watch import Outcome
from distributed_training.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from airflow.sdk import Context

    from distributed_training.fleet import Host
    from distributed_training.plan import Interconnect
    from distributed_training.run.agents import HostAgent

_SIGN_OF_LIFE = "a host that is well gives a sign of life every 5 seconds"


class TrainingOperator(BaseOperator):
    """Runs one training job on the hosts of a fleet; subclasses choose the launcher.

    :param fleet_conn_id: connection of the fleet
    :param script: file that each rank runs with ``python``: in ``source_dir`` or on the host
    :param module: module that each rank runs with ``python -m``
    :param command: any program: a list, or a string that a shell on the host runs for each rank
    :param arguments: of the program: a list, a string, or a dict (``{"epochs": 5}`` becomes
        ``--epochs 5``); passed literally
    :param source_dir: local folder that is sent to every node and is the working directory there
    :param nnodes: number of nodes (all selected hosts); with torchrun also the least and the most,
        as in ``"2:4"``: the job takes what is free, and goes on without hosts that it loses
    :param nproc_per_node: ranks on each node; ``"auto"`` is one for each slot of the host
    :param hosts: selection from the fleet: ``gpu1@gpu2:0,2``, or a list of names
    :param hostfile: local host list to use instead of the connection's
    :param oversubscribe: allow more ranks than slots
    :param env: extra environment of the ranks
    :param host_env: extra environment by host, over ``env``
    :param python: interpreter on the hosts (the connection's, else ``python3``)
    :param setup: bash commands run once on each node before the ranks
    :param master_port: port at which the ranks meet (a free one)
    :param queue_timeout: seconds to wait, deferred, for slots that other jobs hold; the job that
        has waited longest goes first
    :param start_timeout: seconds until every rank's program is executed
    :param stop_signal: signal that asks ranks to save and end
    :param grace_period: seconds from that signal to SIGKILL
    :param host_timeout: seconds of silence after which a connection is made anew
    :param hang_timeout: seconds without a line or a metric from any rank after which the log
        tells where every rank stands, and the job is ended; None: it may be silent for ever
    :param interconnect: network between the hosts: ``tcp``, or ``infiniband``, which is checked
        before and proven while the job runs; ``auto`` is what libraries choose
    :param check_group: fail if a rank ends well without having joined a group of all ranks
    :param orphan_timeout: seconds that nobody watches the job until its agents end it;
        None: they never do
    :param max_restarts: how often all ranks are started again after a host was lost, on a spare
        host if the fleet has one; with ``nnodes="2:4"`` it is torchrun's own, too
    :param max_error_restarts: the same after a rank failed
    :param keep_days: days that the job's folders stay on the hosts after its end
    :param checkpoint_dir: folder on the hosts for checkpoints, handed on as ``DT_CHECKPOINT_DIR``;
        restarts and retries find the newest complete one in ``DT_RESUME_FROM``
    :param outputs: paths to bring back from the head, relative to the working directory or
        absolute; ``*`` and ``**`` make a pattern
    :param output_dir: where to bring them: a local path or any object store URL
    :param log_dir: where the whole log of each rank goes at the end
    :param deferrable: free the worker while the job runs; with False, a worker that is stopped
        ends the job
    """

    template_fields: Collection[str] = (
        "fleet_conn_id", "script", "module", "command", "arguments", "source_dir", "nnodes",
        "nproc_per_node", "hosts", "hostfile", "oversubscribe", "env", "host_env", "python",
        "setup", "master_port", "queue_timeout", "start_timeout", "stop_signal", "grace_period",
        "host_timeout", "hang_timeout", "interconnect", "check_group", "orphan_timeout",
        "max_restarts", "max_error_restarts", "keep_days", "checkpoint_dir", "outputs",
        "output_dir", "log_dir",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"env": "json", "setup": "bash"}
    ui_color = "#e8f0fe"

    def __init__(  # noqa: PLR0915  (a line for each parameter)
        self,
        *,
        fleet_conn_id: str = FleetHook.default_conn_name,
        script: str | None = None,
        module: str | None = None,
        command: str | Sequence[str] | None = None,
        arguments: Sequence[Any] | Mapping[str, Any] | str | None = (),
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
        stop_signal: str | int = "SIGTERM",
        grace_period: float | str = 30,
        host_timeout: float | str = 60,
        hang_timeout: float | str | None = None,
        interconnect: Interconnect | str = "auto",
        check_group: bool | str = True,
        orphan_timeout: float | str | None = 900,
        max_restarts: int | str = 0,
        max_error_restarts: int | str = 0,
        keep_days: float | str = 7,
        checkpoint_dir: str | None = None,
        outputs: str | Sequence[str] = (),
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
        self.hang_timeout = hang_timeout
        self.interconnect = interconnect
        self.check_group = check_group
        self.orphan_timeout = orphan_timeout
        self.max_restarts = max_restarts
        self.max_error_restarts = max_error_restarts
        self.keep_days = keep_days
        self.checkpoint_dir = checkpoint_dir
        self.outputs = outputs
        self.output_dir = output_dir
        self.log_dir = log_dir
        self.deferrable = deferrable
        self._life: Life | None = None

    def execute(self, context: Context) -> Any:
        """Start the job and watch it for a while; then defer, unless it has ended by then."""
        return self._live(context).begin()

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Take the outcome from the triggerer."""
        return self._live(context).resume(Outcome.from_dict(event))

    def launch_queued(self, context: Context, event: dict[str, Any]) -> Any:
        """Launch a job that waited in the triggerer, or fail because it did so in vain."""
        error = TrainingError.from_dict(event["error"]) if event["error"] else None
        return self._live(context).launch_queued(Waiting.from_dict(event["waiting"]), error)

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Resume; a trigger that failed is replaced, since its job goes on."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            raise
        except TaskDeferralError as error:
            self._live(context).replace_trigger(error)

    def on_kill(self) -> None:
        """End the job: a user acts on the running task, or the worker is stopped."""
        if self._life:
            self._life.cancel()

    def _live(self, context: Context) -> Life:
        fill_in(self, self.template_fields)
        self._life = Life(self, context)  # pyright: ignore[reportArgumentType]  (a file and its link)
        return self._life

    def dry_run(self) -> Plan:  # type: ignore[override]  # Airflow's returns nothing
        """Ask the hosts, print the plan and return it; nothing is changed on any host."""

        async def ask(spec: JobSpec) -> Plan:
            async with self.agents(self.hook.fleet.hosts) as agents:
                plan, _ = await propose(spec, list(agents.values()), log=self.log.info)
                return plan

        fill_in(self, self.template_fields)
        with self.source() as source:
            plan = asyncio.run(ask(self.spec({}, source)))
        for line in plan.describe():
            self.log.info("%s", line)
        return plan

    # What is asked for

    launcher: str

    def spec(self, context: Context | Mapping[str, Any], source: Snapshot | None) -> JobSpec:
        """Return the validated specification of this try.

        :raises PlanError: an argument cannot be right
        """
        if output_paths(self.outputs) and not given(self.output_dir):
            raise PlanError("outputs= names what to bring back, but output_dir= does not say where")
        for name in ("output_dir", "log_dir"):
            place = getattr(self, name)
            if not isinstance(given(place), str | PathLike | ObjectStoragePath | None):
                raise PlanError(f"{name}={place!r} is neither a path nor a URL")
        self.budget()  # what it refuses must be known before anything is started
        min_nodes, nnodes = node_range("nnodes", self.nnodes)
        return JobSpec(
            job_id=job_id(context),
            label=job_label(context),
            launcher=self.launcher,
            program=self.program_of(context),
            nnodes=nnodes,
            min_nodes=min_nodes,
            max_restarts=count("max_restarts", self.max_restarts),
            nproc_per_node=whole_number("nproc_per_node", self.nproc_per_node),
            oversubscribe=switch("oversubscribe", self.oversubscribe),
            env=variables("env", self.env),
            host_env=self._host_env(),
            secrets=self.secrets(),
            python=text("python", self.python) or self.hook.python or "python3",
            setup=text("setup", self.setup),
            source=source.sha256 if source else None,
            checkpoint_dir=text("checkpoint_dir", self.checkpoint_dir),
            master_port=whole_number("master_port", self.master_port, most=65535),
            since=time.time() if self.queue_seconds() else None,
            stop_signal=signal_name("stop_signal", self.stop_signal),
            grace_period=seconds("grace_period", self.grace_period),
            start_timeout=seconds("start_timeout", self.start_timeout, least=1),
            host_timeout=seconds("host_timeout", self.host_timeout, least=6, why=_SIGN_OF_LIFE),
            hang_timeout=optional_seconds("hang_timeout", self.hang_timeout, least=1),
            interconnect=choice("interconnect", self.interconnect, INTERCONNECTS),
            check_group=switch("check_group", self.check_group),
            orphan_timeout=optional_seconds("orphan_timeout", self.orphan_timeout, least=1),
            quarantine=self.hook.quarantine,
            keep_days=seconds("keep_days", self.keep_days, "days"),
            disk_cap=self.hook.disk_cap,
        )

    def program_of(self, context: Context | Mapping[str, Any]) -> Program:
        """Return what each rank runs.

        :raises PlanError: it is not said, or in two ways
        """
        return program(self.script, self.module, self.command, self.arguments)

    @contextmanager
    def source(self) -> Iterator[Snapshot | None]:
        """Yield the packed source folder, if there is one."""
        folder, package = text("source_dir", self.source_dir), self.package()
        if folder is None and not package:
            yield None
            return
        with snapshot(Path(folder) if folder else None, package) as taken:
            self.log.info("%s", taken.summary())
            yield taken

    def package(self) -> Mapping[str, str]:
        """Return texts by path that go to the hosts beside what ``source_dir`` holds."""
        return {}

    def secrets(self) -> tuple[str, ...]:
        """Return the values that must not be seen in a log."""
        by_host = variables_by_host("host_env", self.host_env)
        environments = [variables("env", self.env), *by_host.values()]
        return secrets_in(environments, [self.arguments, self.command, self.setup])

    def _host_env(self) -> dict[str, dict[str, str]]:
        by_host = variables_by_host("host_env", self.host_env)
        selected = {host.name for host in self.hook.fleet.hosts} if by_host else ()
        for name in by_host:
            if name not in selected:
                raise PlanError(
                    f"host_env names {name!r}, which is no host of the task; its hosts are "
                    f"{', '.join(sorted(selected))}"
                )
        return by_host

    def returns(self, left: dict[str, Any]) -> dict[str, Any]:
        """Return what goes to XCom, by its key, of what the job left."""
        return {BaseXCom.XCOM_RETURN_KEY: left}

    def budget(self) -> Budget:
        """Return how often the ranks may be started again within a try."""
        own_port = given(self.master_port) not in (None, "auto")
        return Budget(
            lost_hosts=count("max_restarts", self.max_restarts),
            errors=count("max_error_restarts", self.max_error_restarts),
            ports=0 if own_port else 1,
        )

    def queue_seconds(self) -> float:
        """Return for how long the job may wait for slots."""
        return seconds("queue_timeout", self.queue_timeout)

    # The hosts

    @cached_property
    def hook(self) -> FleetHook:
        """The fleet, as far as the task may use it."""
        return FleetHook(
            self.fleet_conn_id,
            hostfile=text("hostfile", self.hostfile),
            hosts=given(self.hosts),
        )

    def agents(self, hosts: Sequence[Host]) -> AbstractAsyncContextManager[dict[str, HostAgent]]:
        """Return the agents of hosts by name, over connections that end with the block."""
        return self.hook.own_agents(hosts)
