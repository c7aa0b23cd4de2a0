"""Talking to the agent of a host: a question, an answer, or a stream behind a marker."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from distributed_training import agent
from distributed_training.errors import (
    AgentError,
    HostUnreachable,
    JobTakenOver,
    PreflightFailed,
    SlotsBusy,
    StartFailed,
    TrainingError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from distributed_training.fleet import Host
    from distributed_training.transport.base import Channel, Transport

ANSWER_TIMEOUT = 120.0  # seconds for an answer that needs no work of the user's

Item = TypeVar("Item")
Result = TypeVar("Result")


class HostAgent:
    """The agent of one host, reached over a transport."""

    def __init__(self, transport: Transport, root: str | None = None) -> None:
        self.transport = transport
        self.root = root

    @property
    def host(self) -> Host:
        """The host behind the transport."""
        return self.transport.host

    async def call(
        self,
        verb: str,
        *,
        body: AsyncIterator[bytes] | None = None,
        within: float | None = ANSWER_TIMEOUT,
        **fields: Any,
    ) -> dict[str, Any]:
        """Ask the agent and return its answer.

        :param body: bytes that follow the request
        :param within: seconds to wait for the answer; None waits for ever
        :raises TrainingError: the class that fits what the agent refused, and why
        """
        try:
            async with asyncio.timeout(within), self.stream(verb, body=body, **fields) as stream:
                return stream.answer
        except TimeoutError:
            raise HostUnreachable(
                f"{self.host.name}: connected, but its agent gave no answer to `{verb}` within "
                f"{within:g} s; look at the load and the disk of the host",
                host=self.host.name,
            ) from None

    @asynccontextmanager
    async def stream(
        self, verb: str, *, body: AsyncIterator[bytes] | None = None, **fields: Any
    ) -> AsyncIterator[Stream]:
        """Ask the agent and yield what follows its answer, for as long as it lasts."""
        marker = secrets.token_hex(16)
        channel = await self.transport.open(agent.COMMAND)
        try:
            stream = Stream(channel, self.host)
            await channel.write(agent.request(verb, marker, root=self.root, **fields))
            if body is not None:
                async for chunk in body:
                    await channel.write(chunk)
            await stream.begin(marker)
            yield stream
        finally:
            await channel.close()


class Stream:
    """What an agent says on one channel: an answer, then lines or bytes.

    It was ``asked`` at a ``time.time()`` of ours.
    """

    def __init__(self, channel: Channel, host: Host) -> None:
        self._channel = channel
        self._host = host
        self._rest = b""
        self.asked = time.time()
        self.answer: dict[str, Any] = {}

    async def begin(self, marker: str) -> None:
        """Pass over what login scripts printed, and read the answer."""
        start = f"\n{marker}\n".encode()
        while start not in self._rest:
            if not await self._more():
                raise await self._silent()
        self._rest = self._rest.partition(start)[2]
        line = await self.line()
        if line is None:
            raise await self._silent()
        self.answer = json.loads(line)
        if not self.answer["ok"]:
            raise refusal(self._host, self.answer["error"])

    async def line(self) -> bytes | None:
        """Return the next line without its end, or None when the stream has ended."""
        while b"\n" not in self._rest:
            if not await self._more():
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    async def lines(self) -> list[bytes]:
        """Return all whole lines that have come, at least one; none when the stream has ended."""
        while b"\n" not in self._rest:
            if not await self._more():
                return []
        whole, _, self._rest = self._rest.rpartition(b"\n")
        return whole.split(b"\n")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes that follow the answer."""
        while self._rest or await self._more():
            chunk, self._rest = self._rest, b""
            yield chunk

    async def say(self, line: str) -> None:
        """Send a line to the agent."""
        await self._channel.write(line.encode() + b"\n")

    async def _more(self) -> bool:
        chunk = await self._channel.read()
        self._rest += chunk
        return bool(chunk)

    async def _silent(self) -> TrainingError:
        """Return why no answer came."""
        end = await self._channel.wait()
        said = (end.stderr.strip() or self._rest.decode("utf-8", "replace").strip())[-2000:]
        name = self._host.name
        if end.status == 127:
            return PreflightFailed(
                f"{name}: `python3` was not found on the PATH of a non-interactive SSH command "
                f"({said}); install Python 3.8 or newer there, or put it on that PATH",
                host=name,
            )
        return AgentError(
            f"{name}: the command sent over SSH ended with status {end.status} and gave no "
            f"answer; it printed: {said or 'nothing'}. Look at the user's login scripts, quota "
            f"and memory on {name}",
            host=name,
        )


def refusal(host: Host, error: dict[str, Any]) -> TrainingError:
    """Return the exception for an agent's refusal."""
    message = f"{host.name}: {error['message']}"
    if error["kind"] == "preflight":
        problems = [f"{host.name}: {p['what']}: {p['why']}; {p['do']}" for p in error["problems"]]
        return PreflightFailed("\n".join(problems), host=host.name)
    classes: dict[str, type[TrainingError]] = {
        "slots_busy": SlotsBusy,
        "port_taken": PreflightFailed,
        "exec_failed": StartFailed,
        "taken_over": JobTakenOver,
    }
    return classes.get(error["kind"], AgentError)(message, host=host.name)


async def on_all(
    items: Sequence[Item], action: Callable[[Item], Awaitable[Result]]
) -> list[Result]:
    """Do the same on all hosts at once; if any fails, say so of every one that failed.

    :raises TrainingError: of the class of the first failure, with the words of all
    """
    results, errors = await answers_of_all(items, action)
    if errors:
        raise type(errors[0]).together(errors)
    return results


async def answers_of_all(
    items: Sequence[Item], action: Callable[[Item], Awaitable[Result]]
) -> tuple[list[Result], list[TrainingError]]:
    """Do the same on all hosts at once; return what came of it, and what failed."""

    async def attempt(item: Item) -> Result | TrainingError:
        try:
            return await action(item)
        except TrainingError as error:
            return error

    answers = await asyncio.gather(*(attempt(item) for item in items))
    errors = [answer for answer in answers if isinstance(answer, TrainingError)]
    return [answer for answer in answers if not isinstance(answer, TrainingError)], errors
