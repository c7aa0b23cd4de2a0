"""How each kind of fault is done: generators that say after how many seconds they go on."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from dev.programs import session
from tests.chaos.scenario import CONTESTED, HOSTS, Job
from tests.chaos.stage import HEALTH, HOST_TIMEOUT, freeze, second_triggerer, thaw
from tests.fleet import processes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from dev.programs import Program
    from tests.chaos.ledger import Entry, Ledger
    from tests.chaos.scenario import Fault
    from tests.chaos.stage import Stage
    from tests.fleet import Host, Process

    Steps = Generator[float, None, None]

PATIENCE = 180.0  # seconds that a fault waits for something that it can befall


class Faults:
    """The faults of one stage; what is under one fault is spared by the next."""

    def __init__(self, stage: Stage, ledger: Ledger) -> None:
        self.stage = stage
        self.ledger = ledger
        self._busy: set[str] = set()
        self._killed_now: set[str] = set()  # parts of Airflow that are to stay down for a while

    def steps(self, fault: Fault) -> Steps:
        """Return what a fault does, step by step."""
        steps: Steps = getattr(self, fault.kind)(fault)
        return steps

    def revive(self) -> None:
        """Start again what has ended by itself, as a machine's own supervisor would."""
        for name, program in self.stage.airflow.components.items():
            ended = program.process is not None and program.process.poll() is not None
            if ended and name not in self._killed_now:
                self.stage.say(f"{name} has ended by itself; it is started again")
                self.ledger.excuse_unsettled(f"the {name} ended by itself")
                program.start()

    # Airflow

    def kill_triggerer(self, fault: Fault) -> Steps:
        """Kill it, and start it again after a while."""
        yield from self._killed("triggerer", 10 * fault.length)

    def restart_triggerer(self, fault: Fault) -> Steps:
        """End it in good order, and start it again."""
        yield from self._restarted("triggerer")

    def kill_dag_processor(self, fault: Fault) -> Steps:
        """Kill it."""
        yield from self._killed("dag-processor", 0)

    def kill_scheduler(self, fault: Fault) -> Steps:
        """Kill it with its workers."""
        self.ledger.excuse_unsettled("the scheduler and its workers were killed")
        yield from self._killed("scheduler", 3 * fault.length)

    def restart_scheduler(self, fault: Fault) -> Steps:
        """End it in good order, which ends running tasks, and start it again."""
        self.ledger.excuse_unsettled("the scheduler ended its workers")
        yield from self._restarted("scheduler")

    def kill_api_server(self, fault: Fault) -> Steps:
        """Kill what tasks report to."""
        self.ledger.excuse_unsettled("the API server was killed")
        yield from self._killed("api-server", 0)

    def freeze_triggerer(self, fault: Fault) -> Steps:
        """Freeze it, but not for so long that it counts as dead."""
        with (yield from self._alone("triggerer")):
            program = self.stage.airflow.components["triggerer"]
            freeze(program)
            yield 2 + 6 * fault.length
            thaw(program)

    def replace_triggerer(self, fault: Fault) -> Steps:
        """Freeze it until a second one has taken over, let it go on, and end the second one."""
        with (yield from self._alone("triggerer")):
            first = self.stage.airflow.components["triggerer"]
            second = second_triggerer(self.stage.airflow)
            second.start()
            try:
                yield 15  # to start
                freeze(first)
                yield 2 * HEALTH + 5 * fault.length
                thaw(first)
                yield 10
            finally:
                second.end(grace=10)

    def kill_task(self, fault: Fault) -> Steps:
        """Kill the process of a task that a worker has in hand."""
        yield from self._task_killed(fault, supervisor=False)

    def kill_task_supervisor(self, fault: Fault) -> Steps:
        """Kill that process and the one that watches it."""
        yield from self._task_killed(fault, supervisor=True)

    # Network

    def drop_connections(self, fault: Fault) -> Steps:
        """Break all SSH connections of a host."""
        with (yield from self._host(fault)) as host:
            self.ledger.excuse_unsettled("its connections broke", host.name)
            host.drop_connections()

    def freeze_connections(self, fault: Fault) -> Steps:
        """Let all SSH connections of a host fall silent for a while."""
        with (yield from self._host(fault)) as host:
            self.ledger.excuse_unsettled("its connections froze", host.name)
            host.freeze()
            yield 2 + 28 * fault.length
            host.thaw()

    def restart_sshd(self, fault: Fault) -> Steps:
        """Restart the SSH server of a host, and break what it had let in."""
        with (yield from self._host(fault)) as host:
            self.ledger.excuse_unsettled("its sshd was restarted", host.name)
            host.stop_sshd()
            host.drop_connections()
            yield 3 * fault.length
            host.restart_sshd()

    def pull_cable(self, fault: Fault) -> Steps:
        """Pull the cable of a host for less than anybody should care about."""
        with (yield from self._host(fault)) as host:
            self.ledger.excuse_unsettled("its cable was pulled", host.name)
            host.cut_cable()
            yield 2 + 8 * fault.length
            host.plug_cable()

    def pull_cable_long(self, fault: Fault) -> Steps:
        """Pull the cable of a host until it counts as lost."""
        why = "its cable was pulled for long"
        with (yield from self._host(fault)) as host, self._down(host, why):
            host.cut_cable()
            yield HOST_TIMEOUT + 15 + 10 * fault.length
            host.plug_cable()

    def cut_power(self, fault: Fault) -> Steps:
        """Cut the power of a host, and give it back after a while."""
        with (yield from self._host(fault)) as host, self._down(host, "its power was cut"):
            host.power_cut()
            yield 2 + 30 * fault.length
            host.power_on()

    # Processes on hosts

    def kill_rank(self, fault: Fault) -> Steps:
        """Kill one rank."""
        entry, _, process = yield from self._rank(fault)
        entry.excuse("a rank was killed")
        processes.send(signal.SIGKILL, [process.outside])

    def kill_supervisor(self, fault: Fault) -> Steps:
        """Kill the agent that tends a rank."""
        yield from self._agent_killed(fault, above=0)

    def kill_watchdog(self, fault: Fault) -> Steps:
        """Kill the agent that looks after that agent."""
        yield from self._agent_killed(fault, above=1)

    def failing_rank(self, fault: Fault) -> Steps:
        """Start a job one of whose ranks fails by itself."""
        own = {"1": {"fails_at": int(5 + 90 * fault.length)}}
        self.ledger.submit(self._ordered(fault, None, own)).excuse("a rank was to fail")
        yield 0

    def deaf_rank(self, fault: Fault) -> Steps:
        """Start a job that does not listen, and fail its run."""
        job = self._ordered(fault, None, {str(rank): {"deaf": True} for rank in range(4)})
        entry = self.ledger.submit(job)
        entry.excuse("its run is to be failed")
        yield from self._until(lambda: len(entry.excuses) > 1 or self._complete(entry))
        yield 20 * fault.length
        self._user(entry, "failed")
        self.stage.patiently(entry.run.fail)

    def flooding_rank(self, fault: Fault) -> Steps:
        """Start a job one of whose ranks prints very much at once."""
        own = {"0": {"floods_at": int(10 + 50 * fault.length), "lines": 20000 + 120}}
        self.ledger.submit(self._ordered(fault, 120, own))
        yield 0

    def contention(self, fault: Fault) -> Steps:
        """Let two jobs want the same slots at the same time."""
        for each in "ab":
            entry = self.ledger.submit(
                Job(f"f{fault.number}{each}", "ranks", (CONTESTED,), int(60 + 60 * fault.length))
            )
            entry.excuse("another job has the slots")
        yield 0

    # Users

    def mark_failed(self, fault: Fault) -> Steps:
        """Mark a task failed."""
        entry = yield from self._victim(fault)
        self._user(entry, "failed")
        self.stage.patiently(lambda: entry.run.mark("train", "failed"))

    def mark_success(self, fault: Fault) -> Steps:
        """Mark a task success."""
        entry = yield from self._victim(fault)
        self._user(entry, "success")
        self.stage.patiently(lambda: entry.run.mark("train", "success"))

    def fail_run(self, fault: Fault) -> Steps:
        """Fail a whole run."""
        entry = yield from self._victim(fault)
        self._user(entry, "failed")
        self.stage.patiently(entry.run.fail)

    def clear(self, fault: Fault) -> Steps:
        """Clear a task, so that it trains anew."""
        entry = yield from self._victim(fault)
        entry.cut = True
        entry.begun = time.monotonic()
        self.stage.patiently(lambda: entry.run.clear("train"))

    # What they have in common

    def _killed(self, name: str, pause: float) -> Steps:
        with (yield from self._alone(name)):
            self._killed_now.add(name)
            self.stage.airflow.kill(name)
            if pause:  # without one nobody may ask in between: the API server answers no more
                yield pause
            self.stage.airflow.components[name].start()
            self._killed_now.discard(name)
            yield from self._well(name)

    def _restarted(self, name: str) -> Steps:
        with (yield from self._alone(name)):
            self.stage.airflow.restart(name)
            yield from self._well(name)

    def _well(self, name: str) -> Steps:
        yield from self._until(lambda: not {name, "api-server"} & {*self.stage.airflow.unhealthy()})

    def _task_killed(self, fault: Fault, *, supervisor: bool) -> Steps:
        with (yield from self._alone("scheduler")):
            host = self._named(fault)
            yield from self._until(lambda: host not in self.ledger.down)
            entry = self.ledger.submit(Job(f"f{fault.number}", "ranks_again", (host,), None))
            if not (yield from self._running(entry)):
                return
            yield 3 * fault.length
            entry.excuse("its worker was killed", cut=True)
            task = self.stage.patiently(lambda: entry.run.task("train"))["id"]
            with suppress(LookupError):  # it has been deferred meanwhile
                process, worker = task_processes(self.stage.airflow.components["scheduler"], task)
                if supervisor:
                    worker.kill()  # first, or it dies with the lock of the workers' queue
                process.kill()

    def _running(self, entry: Entry) -> Generator[float, None, bool]:
        """Wait until all ranks of a job run, and return whether they do: not every job gets far."""
        try:
            yield from self._until(lambda: entry.excuses or self._complete(entry))
        except TimeoutError as error:
            ranks, state = len(self.stage.ranks(entry.job.key)), self.ledger.task_state(entry)
            told = f"{entry.job.key} has {ranks} ranks, and its task is {state}"
            raise TimeoutError(told) from error
        return self._complete(entry)

    def _complete(self, entry: Entry) -> bool:
        return len(self.stage.ranks(entry.job.key)) == entry.job.world_size

    def _agent_killed(self, fault: Fault, above: int) -> Steps:
        entry, host, process = yield from self._rank(fault)
        entry.excuse("an agent was killed", host=host.name)
        running = {each.pid: each for each in host.processes()}
        launched = [each for each in ancestors(process, running) if entry.job.key in each.command]
        process = ancestors(process, running)[len(launched) + above]
        processes.send(signal.SIGKILL, [process.outside])

    def _user(self, entry: Entry, did: str) -> None:
        entry.user, entry.cut = did, True

    @contextmanager
    def _down(self, host: Host, what: str) -> Iterator[None]:
        """Excuse jobs that use a host, and those that come while it is out of reach."""
        self.ledger.excuse_unsettled(what, host.name)
        for entry in self.ledger.on(host.name):
            entry.excuse(f"{host.name}: {what}", host=host.name)
        self.ledger.down[host.name] = what
        yield
        del self.ledger.down[host.name]

    def _rank(self, fault: Fault) -> Generator[float, None, tuple[Entry, Host, Process]]:
        """Return a rank that nothing has befallen, with its job and its host."""
        while True:
            entry = yield from self._victim(fault)
            if ranks := self.stage.ranks(entry.job.key):  # else it has ended in just this moment
                return entry, *ranks[int(fault.length * len(ranks))]

    def _named(self, fault: Fault) -> str:
        return HOSTS[int(fault.aim * len(HOSTS))]

    def _ordered(self, fault: Fault, lines: int | None, own: dict[str, dict[str, Any]]) -> Job:
        others = [name for name in HOSTS if name != self._named(fault)]
        return Job(f"f{fault.number}", "ranks", tuple(others), lines, own=own)

    def _victim(self, fault: Fault) -> Generator[float, None, Entry]:
        """Return a job that nothing has befallen; if there is none, start one."""
        end, own = time.monotonic() + PATIENCE, None
        while not (calm := self.ledger.calm()):
            if time.monotonic() > end:
                raise TimeoutError("no job came to run that a fault could befall")
            host = self._named(fault)
            if (own is None or own.excuses) and host not in self.ledger.down:
                name = f"f{fault.number}-{len(self.ledger.entries)}"
                own = self.ledger.submit(Job(name, "ranks", (host,), None))
            yield 1
        return calm[int(fault.aim * len(calm))]

    def _host(self, fault: Fault) -> Generator[float, None, Any]:
        """Return a block in which a host is under no other fault."""
        name = self._named(fault)
        alone = yield from self._alone(name)

        @contextmanager
        def block() -> Iterator[Host]:
            with alone:
                yield self.stage.fleet[name]

        return block()

    def _alone(self, name: str) -> Generator[float, None, Any]:
        """Return a block in which something is under no other fault."""
        yield from self._until(lambda: name not in self._busy)
        self._busy.add(name)

        @contextmanager
        def block() -> Iterator[None]:
            try:
                yield
            finally:
                self._busy.discard(name)

        return block()

    @staticmethod
    def _until(condition: Any) -> Steps:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("what a fault waits for did not come")
            yield 0.5


def ancestors(process: Process, running: Mapping[int, Process]) -> list[Process]:
    """Return who started a process, and who started that one, up to the first of its host."""
    parent = running.get(process.ppid)
    return [parent, *ancestors(parent, running)] if parent else []


def task_processes(scheduler: Program, task_id: str) -> tuple[psutil.Process, psutil.Process]:
    """Return the process that runs a task, and the worker of the scheduler that looks after it.

    :param task_id: Airflow's number of this try
    """
    assert scheduler.process is not None
    for process in session(scheduler.process.pid):
        with suppress(psutil.NoSuchProcess):
            if task_id in " ".join(process.cmdline()) and (worker := process.parent()):
                return process, worker
    raise LookupError(f"no process of the scheduler runs task {task_id}")
