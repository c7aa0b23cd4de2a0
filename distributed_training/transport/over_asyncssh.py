"""SSH by asyncssh, which is made for many hosts in one event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR, OPEN_REQUEST_SESSION_FAILED

from distributed_training.transport.asyncssh_login import refusal
from distributed_training.transport.base import CHUNK, STRAGGLE, Channel, Exit, Tail
from distributed_training.transport.connections import ChannelRefused, SshTransport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from distributed_training.errors import ConnectionLost
    from distributed_training.fleet import Host

# It tells of every channel that opens, at the level of Airflow's own messages.
asyncssh.set_log_level("WARNING")

OPEN_TIMEOUT = 30.0
BUFFER = 1024 * 1024  # bytes that wait for a reader before the host must wait


class AsyncsshTransport(SshTransport[asyncssh.SSHClientConnection]):
    """A host reached by asyncssh.

    :param connect: returns a new connection, or raises why there is none
    """

    def __init__(
        self, host: Host, connect: Callable[[], Awaitable[asyncssh.SSHClientConnection]]
    ) -> None:
        super().__init__(host)
        self._make = connect

    async def _connect(self) -> asyncssh.SSHClientConnection:
        try:
            return await self._make()
        except (asyncssh.Error, OSError) as error:
            raise refusal(error) from error

    async def _start(self, connection: asyncssh.SSHClientConnection, command: str) -> Channel:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                session = _Session()
                await connection.create_session(lambda: session, command, encoding=None)
        except asyncssh.ChannelOpenError as error:
            if connection.is_closed():
                raise self._lost() from error
            if error.code == OPEN_REQUEST_SESSION_FAILED:
                raise self._unreachable(f"it refuses to run commands: {error.reason}") from error
            raise ChannelRefused(error.reason) from error
        except (asyncssh.Error, OSError) as error:
            # A server that does not even answer in time (TimeoutError) is as good as gone.
            connection.abort()
            raise self._lost() from error
        return AsyncsshChannel(session, self._lost)

    def _alive(self, connection: asyncssh.SSHClientConnection) -> bool:
        return not connection.is_closed()

    async def _end(self, connection: asyncssh.SSHClientConnection) -> None:
        connection.abort()
        await connection.wait_closed()


class _Session(asyncssh.SSHClientSession[bytes]):
    """What asyncssh tells of a channel, kept until somebody asks."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = Tail()
        self.signal: str | None = None
        self.at_end = False  # the command will write no more
        self.broken = False  # the connection has gone, and with it the rest
        self.arrived, self.ended, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self.channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        if datatype == EXTENDED_DATA_STDERR:
            self.stderr.add(data)
            return
        self.stdout += data
        self.arrived.set()
        if len(self.stdout) > BUFFER:
            self.channel.pause_reading()

    def take(self) -> bytes:
        """Return some of what arrived, and let more come."""
        data = bytes(self.stdout[:CHUNK])
        del self.stdout[:CHUNK]
        if len(self.stdout) <= BUFFER:
            self.channel.resume_reading()
        return data

    def eof_received(self) -> bool:
        self.at_end = True
        self.arrived.set()
        return True  # stdin stays open

    def exit_status_received(self, status: int) -> None:
        self.ended.set()

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.signal = f"SIG{signal}"
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.broken = exc is not None and not self.ended.is_set()
        for event in (self.arrived, self.ended, self.closed, self.writable):
            event.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


class AsyncsshChannel(Channel):
    """A session of asyncssh."""

    def __init__(self, session: _Session, lost: Callable[[], ConnectionLost]) -> None:
        self._session = session
        self._lost = lost

    async def read(self) -> bytes:
        """Return some bytes of stdout, or b"" at its end."""
        session = self._session
        while not session.stdout:
            if session.at_end:
                return b""
            if session.closed.is_set():
                self._expect_unbroken()
                return b""
            session.arrived.clear()
            await session.arrived.wait()
        return session.take()

    def _expect_unbroken(self) -> None:
        if self._session.broken:
            raise self._lost()

    async def write(self, data: bytes) -> None:
        """Write to stdin, waiting while the window is full."""
        try:
            self._session.channel.write(data)
        except BrokenPipeError:
            self._expect_unbroken()
        await self._session.writable.wait()
        self._expect_unbroken()

    async def write_eof(self) -> None:
        """Close stdin."""
        with suppress(BrokenPipeError):
            self._session.channel.write_eof()

    async def wait(self) -> Exit:
        """Return how the command ended."""
        session = self._session
        await session.ended.wait()
        self._expect_unbroken()
        with suppress(TimeoutError):
            async with asyncio.timeout(STRAGGLE):
                await session.closed.wait()
        status = None if session.signal else session.channel.get_exit_status()
        return Exit(status, session.signal, str(session.stderr))

    async def close(self) -> None:
        """Close the channel."""
        self._session.channel.close()
