"""Carries what an mpirun wants to run on other hosts there, and back how it has ended."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from distributed_training.errors import HostUnreachable, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from distributed_training.run.agents import HostAgent
    from distributed_training.run.job import JobRef, NodeRef

_RETRY = 2.0  # seconds until a host that did not answer is asked again
_FAILED = 255  # as ssh says that it could not connect
_SHELL = 128  # what a shell adds to the number of a signal
_DAEMON = "daemon-"  # what agents call such a command, followed by its number


class Relays:
    """The errands between the hosts of one job. Each may be run twice: agents know them by number.

    :param agents: by name of the host
    :param log: told what cannot be done
    """

    def __init__(
        self, ref: JobRef, agents: Mapping[str, HostAgent], log: Callable[[str], None]
    ) -> None:
        self._ref = ref
        self._agents = agents
        self._log = log
        self._running: set[asyncio.Future[None]] = set()

    def note(self, record: Mapping[str, Any]) -> None:
        """Act on a record of a journal, if it is about a command for another host."""
        if record["k"] == "relay":
            self._run(self._carry(record))
        elif record["k"] == "exit" and record["name"].startswith(_DAEMON):
            self._run(self._tell(record["name"].removeprefix(_DAEMON), _code(record)))

    def stop(self) -> None:
        """Leave what is not done: the job is over."""
        for each in self._running:
            each.cancel()

    def _run(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry(self, record: Mapping[str, Any]) -> None:
        """Have a command run on its host."""
        number, address = record["id"], record["host"]
        there = [node for node in self._ref.nodes if address in (node.address, node.host.name)]
        try:
            if not there:
                raise TrainingError(f"mpirun wants to start {address}, which is not in the job")
            await self._ask(there[0], "relay", id=number, command=record["command"])
        except TrainingError as error:
            self._log(f"A daemon of mpirun could not be started: {error.message}")
            await self._tell(number, _FAILED)

    async def _tell(self, number: str, code: int) -> None:
        """Let mpirun know how a command has ended."""
        with suppress(TrainingError):  # of a head that has ended: nobody waits there any more
            await self._ask(self._ref.head, "relayed", id=number, code=code)

    async def _ask(self, node: NodeRef, verb: str, **fields: Any) -> None:
        """Ask an agent, again and again while its host is out of reach."""
        while True:
            try:
                await self._agents[node.host.name].call(
                    verb,
                    job=self._ref.job_id,
                    attempt=self._ref.attempt,
                    node=node.node_rank,
                    **fields,
                )
                return
            except HostUnreachable:
                await asyncio.sleep(_RETRY)


def _code(record: Mapping[str, Any]) -> int:
    """Return the exit status of a command as ssh would give it."""
    if record["signal"]:
        return _SHELL + getattr(signal, record["signal"], 0)
    return _FAILED if record["code"] is None else int(record["code"])
