"""SSH by paramiko, the library of Airflow's SSHHook: its threads wake our coroutines."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import paramiko  # type: ignore[import-untyped]
from paramiko.common import MSG_CHANNEL_REQUEST  # type: ignore[import-untyped]

from distributed_training.transport.base import CHUNK, STRAGGLE, Channel, Exit, Tail
from distributed_training.transport.connections import ChannelRefused, SshTransport
from distributed_training.transport.paramiko_login import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed_training.errors import ConnectionLost
    from distributed_training.fleet import Host

Result = TypeVar("Result")

# Threads a host for calls that may block on its socket. None waits for a remote program, so that
# few do for any number of channels.
THREADS = 4
OPEN_TIMEOUT = 30.0
HANDLERS = "_channel_handler_table"  # where paramiko looks up what to do with a message

# What ended the commands that a signal ended, which paramiko has no place for.
_signals: WeakKeyDictionary[paramiko.Channel, str] = WeakKeyDictionary()


class ParamikoTransport(SshTransport[paramiko.SSHClient]):
    """A host reached by paramiko.

    :param connect: blocks until there is a connection, or raises why there is none
    """

    def __init__(self, host: Host, connect: Callable[[], paramiko.SSHClient]) -> None:
        super().__init__(host)
        self._make = connect
        self._threads: ThreadPoolExecutor | None = None

    async def close(self) -> None:
        """End all connections and their threads; `open` makes new ones."""
        await super().close()
        if self._threads:
            self._threads.shutdown(wait=False)
            self._threads = None

    async def _connect(self) -> paramiko.SSHClient:
        making = self._submit(self._make)
        try:
            client = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_late)
            raise
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise refusal(error) from error
        transport = client.get_transport()
        if transport is not None:
            _hear_signals(transport)
        return client

    def _submit(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        if self._threads is None:  # not the loop's own, which are few, and which others use
            name = f"ssh {self.host.name}"
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def _start(self, connection: paramiko.SSHClient, command: str) -> Channel:
        channel = await self._submit(_open_session, connection)
        if channel is None:
            raise self._lost()
        opened = ParamikoChannel(channel, self._submit, self._lost)
        try:
            await self._submit(channel.exec_command, command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            if self._alive(connection):
                raise self._unreachable(f"it refuses to run commands: {error}") from error
            raise self._lost() from error
        return opened

    def _alive(self, connection: paramiko.SSHClient) -> bool:
        transport = connection.get_transport()
        return transport is not None and transport.is_active()

    async def _end(self, connection: paramiko.SSHClient) -> None:
        await self._submit(connection.close)


class ParamikoChannel(Channel):
    """A paramiko channel whose waiting is done by the event loop, not by a thread."""

    def __init__(
        self,
        channel: paramiko.Channel,
        submit: Callable[..., asyncio.Future[Any]],
        lost: Callable[[], ConnectionLost],
    ) -> None:
        self._channel = channel
        self._submit = submit
        self._lost = lost
        self._stderr = Tail()
        loop = asyncio.get_running_loop()
        self._arrived, self._complained = _Bell(loop), _Bell(loop)
        self._ended, self._window = _Bell(loop), _WindowBell(channel.lock, loop)
        channel.in_buffer.set_event(self._arrived)
        channel.in_stderr_buffer.set_event(self._complained)
        channel.status_event = self._ended
        channel.out_buffer_cv = self._window
        self._drain = asyncio.create_task(self._keep_stderr())

    async def read(self) -> bytes:
        """Return some bytes of stdout, or b"" at its end."""
        while True:
            self._arrived.heard.clear()
            ended = self._channel.eof_received or self._channel.closed
            if self._channel.recv_ready():
                data: bytes = await self._submit(self._channel.recv, CHUNK)
                return data
            if ended:
                await self._expect_orderly_end()
                return b""
            await self._arrived.heard.wait()

    async def _expect_orderly_end(self) -> None:
        channel = self._channel
        if channel.eof_received or channel.exit_status != -1 or channel in _signals:
            return
        for _ in range(20):  # paramiko ends the channels of a broken connection before it says so
            self._expect_living_connection()
            await asyncio.sleep(0.05)

    async def _keep_stderr(self) -> None:
        while True:
            self._complained.heard.clear()
            ended = self._channel.eof_received or self._channel.closed
            if self._channel.recv_stderr_ready():
                self._stderr.add(await self._submit(self._channel.recv_stderr, CHUNK))
            elif ended:
                return
            else:
                await self._complained.heard.wait()

    async def write(self, data: bytes) -> None:
        """Write to stdin, waiting while the window is full."""
        rest = memoryview(data)
        while rest:
            self._window.heard.clear()
            if self._channel.closed:
                self._expect_living_connection()
                return
            if self._channel.send_ready():
                sent = await self._submit(self._send, bytes(rest[:CHUNK]))
                rest = rest[sent:]
            else:
                await self._window.heard.wait()

    def _send(self, data: bytes) -> int:
        """Send what fits into the window, which no other thread takes from."""
        try:
            sent: int = self._channel.send(data)
        except OSError:
            return 0  # closed meanwhile, as the caller will see
        return sent

    def _expect_living_connection(self) -> None:
        if not self._channel.get_transport().is_active():
            raise self._lost()

    async def write_eof(self) -> None:
        """Close stdin."""
        with suppress(OSError, EOFError):
            await self._submit(self._channel.shutdown_write)

    async def wait(self) -> Exit:
        """Return how the command ended."""
        while not self._ended.is_set():
            self._ended.heard.clear()
            if not self._ended.is_set():
                await self._ended.heard.wait()
        await self._expect_orderly_end()
        await asyncio.wait({self._drain}, timeout=STRAGGLE)
        status = self._channel.exit_status
        return Exit(
            None if status == -1 else status, _signals.get(self._channel), str(self._stderr)
        )

    async def close(self) -> None:
        """Close the channel."""
        self._drain.cancel()
        with suppress(OSError, EOFError, RuntimeError):  # RuntimeError: the transport is closed
            await self._submit(self._channel.close)


class _Bell(threading.Event):
    """An event that paramiko's thread sets and a coroutine waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        self._loop = loop

    def set(self) -> None:
        super().set()
        _ring(self._loop, self.heard)


class _WindowBell(threading.Condition):
    """The condition by which paramiko tells that the window has opened, or that all is over."""

    def __init__(self, lock: threading.Lock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lock)
        self.heard = asyncio.Event()
        self._loop = loop

    def notify_all(self) -> None:
        super().notify_all()
        _ring(self._loop, self.heard)


def _ring(loop: asyncio.AbstractEventLoop, heard: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended, and nobody listens any more
        loop.call_soon_threadsafe(heard.set)


def _open_session(client: paramiko.SSHClient) -> paramiko.Channel | None:
    """Return a new channel, or None if the connection is dead."""
    transport = client.get_transport()
    if transport is None or not transport.is_active():
        return None
    try:
        return transport.open_session(timeout=OPEN_TIMEOUT)
    except paramiko.ChannelException as error:
        raise ChannelRefused(error.text) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        # Of several refusals at once, paramiko keeps one; the others come out without a reason.
        if transport.is_active() and "Timeout" not in str(error):
            raise ChannelRefused(str(error)) from error
        # A server that does not even answer within OPEN_TIMEOUT is as good as gone.
        transport.close()
        return None


def _hear_signals(transport: paramiko.Transport) -> None:
    """Let channels learn of the signal that ended a command; paramiko drops that message."""
    handlers = getattr(transport, HANDLERS)
    usual = handlers[MSG_CHANNEL_REQUEST]

    def request(channel: paramiko.Channel, message: paramiko.Message) -> None:
        position = message.packet.tell()
        if message.get_text() == "exit-signal":
            message.get_boolean()
            _signals[channel] = f"SIG{message.get_text()}"
            channel.status_event.set()
        else:
            message.packet.seek(position)
            usual(channel, message)

    setattr(transport, HANDLERS, {**handlers, MSG_CHANNEL_REQUEST: request})


def _close_late(making: asyncio.Future[paramiko.SSHClient]) -> None:
    """Close a connection that came when nobody wanted it any more."""
    if not making.cancelled() and making.exception() is None:
        threading.Thread(target=making.result().close, daemon=True).start()
