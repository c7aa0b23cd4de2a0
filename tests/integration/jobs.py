"""Jobs on real hosts without Airflow: what an operator does, in the words of a test."""

from __future__ import annotations

import asyncio
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from distributed_training.plan import JobSpec, Plan, Program
from distributed_training.run import collect
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch
from distributed_training.run.watch import Outcome, Watcher
from distributed_training.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from distributed_training.errors import TrainingError
    from distributed_training.hooks.fleet import FleetHook
    from distributed_training.run.agents import HostAgent

SCRIPT = Program("script", "train.py")
# As setup: takes the port of the ranks in the moment that it is free, as if somebody were faster.
THIEF = """cat > thief.py <<'END'
import os, socket, time
port = int(os.environ["MASTER_PORT"])
while True:
    try:
        thief = socket.create_server(("", port))
        break
    except OSError:
        time.sleep(0.001)
time.sleep(30)
END
setsid python3 thief.py >/dev/null 2>&1 &"""


def digits(source: Path) -> None:
    """Put digits of a kind into a source folder: each has its own blot."""
    x = np.random.default_rng(0).random((512, 64), dtype="float32")
    y = np.arange(512) % 10
    x[np.arange(512), y] += 2
    np.savez(source / "train.npz", x=x, y=y)


@dataclass
class Job:
    """A job of a test, and all that was seen of it."""

    plan: Plan | None = None
    lines: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    left: collect.Result | None = None

    @property
    def error(self) -> TrainingError | None:
        """Why it failed."""
        assert self.outcome is not None
        return self.outcome.error

    @property
    def text(self) -> str:
        """Its log."""
        return "\n".join(self.lines)

    def of_rank(self, rank: int) -> list[str]:
        """Return the lines of one rank, without where they come from."""
        own = [line for line in self.lines if line.startswith(f"[rank {rank} ")]
        return [line.partition("] ")[2] for line in own]


class Jobs:
    """Runs jobs on the hosts of a connection.

    :param hook: the connection
    :param folder: a temporary one
    """

    def __init__(self, hook: FleetHook, folder: Path) -> None:
        self.hook = hook
        self.folder = folder

    def run(
        self,
        script: str,
        *,
        when: str | None = None,
        then: Callable[[Job], None] = lambda job: None,
        furnish: Callable[[Path], None] = lambda source: None,
        **fields: Any,
    ) -> Job:
        """Run ``script`` on all hosts to its end.

        :param when: text that a line must have for ``then`` to be called, once
        :param then: called while the job runs, in a thread of its own
        :param furnish: puts more into the source folder
        :param fields: of the specification
        """
        source = self.folder / f"source-{secrets.token_hex(4)}"
        source.mkdir()
        (source / "train.py").write_text(script)
        furnish(source)
        return asyncio.run(self._run(source, when, then, fields))

    def ask(self, question: Callable[..., Awaitable[Any]], *about: Any) -> Any:
        """Return what the agents of all hosts answer to a question."""

        async def answer() -> Any:
            async with self.agents() as agents:
                return await question(agents, *about)

        return asyncio.run(answer())

    async def _run(
        self,
        source: Path,
        when: str | None,
        then: Callable[[Job], None],
        fields: dict[str, Any],
    ) -> Job:
        job, owner = Job(), secrets.token_hex(4)

        def log(line: str) -> None:
            nonlocal when
            job.lines.append(line)
            if when is not None and when in line:
                when = None
                threading.Thread(target=then, args=(job,), daemon=True).start()

        with snapshot(source) as taken:
            async with self.agents() as agents:
                spec = JobSpec(
                    **{
                        "job_id": f"test-{owner}",
                        "program": SCRIPT,
                        "source": taken.sha256,
                        "grace_period": 5.0,
                        **fields,
                    }
                )
                job.plan = await launch(spec, list(agents.values()), owner=owner, snapshot=taken)
                ref = JobRef.of(job.plan)
                job.outcome = await Watcher(ref, agents, owner, log).watch()
                if job.outcome.error is None:
                    job.left = await collect.result(ref, agents)
        return job

    def agents(self) -> AbstractAsyncContextManager[dict[str, HostAgent]]:
        """Return the agents of all hosts by name, as a worker has them."""
        return self.hook.own_agents(self.hook.fleet.hosts)
