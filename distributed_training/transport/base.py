"""What every way to reach a host offers: channels, each running one remote command."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed_training.errors import HostUnreachable

if TYPE_CHECKING:
    from distributed_training.fleet import Host

CHUNK = 64 * 1024

# Seconds for which the stderr of a command that has ended may stay open: what it left running in
# the background can hold it for ever.
STRAGGLE = 1.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a remote command ended; status and signal are both None if nobody can tell.

    :param signal: its name, such as ``SIGKILL``, if a signal ended the command
    :param stderr: the last 16 KiB that it wrote there
    """

    status: int | None
    signal: str | None
    stderr: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended, and all that it wrote to stdout."""

    exit: Exit
    stdout: bytes


class Tail:
    """The end of a stream that is read for error messages only."""

    LIMIT = 16 * 1024

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Keep the end of all that was added."""
        self._data += data
        del self._data[: -self.LIMIT]

    def __str__(self) -> str:
        return self._data.decode("utf-8", "replace")


class Channel(ABC):
    """One remote command; its stderr is read all the time, so that it never blocks there."""

    @abstractmethod
    async def read(self) -> bytes:
        """Return some bytes of stdout, or b"" at its end; ConnectionLost if the rest is lost."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to stdin, waiting for as long as the command does not read.

        A command that has closed its stdin is no error here: how it ended tells more.
        """

    @abstractmethod
    async def write_eof(self) -> None:
        """Close stdin."""

    @abstractmethod
    async def wait(self) -> Exit:
        """Return how the command ended, once it has."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the command without waiting for it."""


class Transport(ABC):
    """The way to one host.

    :param host: the host as it is reached, with the user and the port that are used
    """

    def __init__(self, host: Host) -> None:
        self.host = host

    @abstractmethod
    async def open(self, command: str) -> Channel:
        """Start a command, connecting first if there is no connection that works."""

    @abstractmethod
    async def close(self) -> None:
        """End all connections; the commands on them may live on."""

    async def run(
        self,
        command: str,
        stdin: bytes | AsyncIterable[bytes] = b"",
        timeout: float | None = None,  # noqa: ASYNC109  (HostUnreachable, with the host's name)
    ) -> Completed:
        """Run a command to its end; HostUnreachable if that takes longer than ``timeout``."""
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                channel = await self.open(command)
                try:
                    return await _complete(channel, stdin)
                finally:
                    await channel.close()
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = f"{self.host.name} did not answer within {timeout:g} s"
            raise HostUnreachable(message, host=self.host.name) from error


async def _complete(channel: Channel, stdin: bytes | AsyncIterable[bytes]) -> Completed:
    feeder = asyncio.create_task(_feed(channel, stdin))
    reader = asyncio.create_task(_read_to_end(channel))
    try:
        await asyncio.wait({feeder, reader}, return_when=asyncio.FIRST_COMPLETED)
        if feeder.done():
            feeder.result()  # whoever was to supply stdin may have failed
        return await reader
    finally:
        # A command may end without having read all of its stdin.
        feeder.cancel()
        reader.cancel()
        await asyncio.gather(feeder, reader, return_exceptions=True)


async def _read_to_end(channel: Channel) -> Completed:
    stdout = bytearray()
    while data := await channel.read():
        stdout += data
    return Completed(await channel.wait(), bytes(stdout))


async def _feed(channel: Channel, stdin: bytes | AsyncIterable[bytes]) -> None:
    if isinstance(stdin, AsyncIterable):
        async for data in stdin:
            await channel.write(data)
    else:
        for start in range(0, len(stdin), CHUNK):
            await channel.write(stdin[start : start + CHUNK])
    await channel.write_eof()
