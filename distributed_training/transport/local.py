"""Run on this very machine, through a real shell: what tests use in place of a host."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from distributed_training.transport.base import CHUNK, STRAGGLE, Channel, Exit, Tail, Transport

if TYPE_CHECKING:
    from distributed_training.fleet import Host


class LocalTransport(Transport):
    """The machine itself, as if SSH led to it.

    :param shell: what runs each command, as a user's login shell does
    """

    def __init__(self, host: Host, shell: str = "/bin/sh") -> None:
        super().__init__(host)
        self.shell = shell
        self._channels: set[LocalChannel] = set()

    async def open(self, command: str) -> Channel:
        """Start a command in the shell, in a session of its own."""
        channel = LocalChannel(await asyncio.to_thread(self._spawn, command))
        self._channels.add(channel)
        await channel.connect()
        return channel

    def _spawn(self, command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.shell, "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    async def close(self) -> None:
        """Let go of all commands."""
        for channel in self._channels:
            await channel.close()
        self._channels.clear()


class LocalChannel(Channel):
    """A process and its three pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._stderr = Tail()
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def connect(self) -> None:
        """Attach the pipes to the event loop."""
        self._stdout, self._out_pipe = await _reader(self._process.stdout)
        stderr, self._err_pipe = await _reader(self._process.stderr)
        self._stdin = await _writer(self._process.stdin)
        self._drain = asyncio.create_task(self._keep(stderr))
        # Not asyncio's subprocess: closing that would kill the command.
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._await_exit, args=(loop,), daemon=True).start()

    def _await_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._process.wait()
        with suppress(RuntimeError):  # the loop has ended, and nobody asks any more
            loop.call_soon_threadsafe(self._status.set_result, status)

    async def _keep(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(CHUNK):
            self._stderr.add(data)

    async def read(self) -> bytes:
        """Return some bytes of stdout, or b"" at its end."""
        return await self._stdout.read(CHUNK)

    async def write(self, data: bytes) -> None:
        """Write to stdin, waiting while the pipe is full."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stdin.write(data)
            await self._stdin.drain()

    async def write_eof(self) -> None:
        """Close stdin."""
        self._stdin.close()

    async def wait(self) -> Exit:
        """Return how the command ended."""
        status = await asyncio.shield(self._status)
        await asyncio.wait({self._drain}, timeout=STRAGGLE)
        if status < 0:
            return Exit(None, signal.Signals(-status).name, str(self._stderr))
        return Exit(status, None, str(self._stderr))

    async def close(self) -> None:
        """Close the pipes; the command lives on, as it does when an SSH channel is closed."""
        self._drain.cancel()
        if self._process.stdin and not self._process.stdin.closed:
            self._stdin.transport.abort()
        self._out_pipe.close()
        self._err_pipe.close()


async def _reader(pipe: IO[bytes] | None) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=CHUNK)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return reader, transport


async def _writer(pipe: IO[bytes] | None) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)
