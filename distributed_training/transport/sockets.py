"""Ways to an SSH server: TCP that notices a dead peer, or a proxy command with a voice."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from distributed_training.transport.base import CHUNK, Tail
from distributed_training.transport.connections import Patience, Refusal, dropped, network_refusal

if TYPE_CHECKING:
    from distributed_training.transport.login import Login

# Seconds without an acknowledgement after which the kernel gives a connection up.
DEAD_PEER = 120
# Seconds in which a proxy command that was let go must end.
FAREWELL = 2.0
TRY_BY_HAND = "try host_proxy_cmd by hand, where tasks and triggers run"
SILENT = Refusal(
    "it takes connections, but no SSH server speaks there in time",
    "check the port; on a host under heavy load, a longer conn_timeout may help",
    Patience.SHORT,
)


class Line:
    """A socket on which a server has spoken.

    :param greeting: what it said first, still to be read from the socket
    """

    def __init__(self, connection: socket.socket, greeting: bytes) -> None:
        self.socket = connection
        self.greeting = greeting

    def blamed(self, refusal: Refusal) -> Refusal:
        """Return why a library found no SSH server here, as exactly as can be told."""
        if refusal.patience is Patience.NONE:
            return refusal
        if not self.greeting.startswith(b"SSH-") and b"MaxStartups" not in self.greeting:
            words = self.greeting.decode("utf-8", "replace").strip()
            return Refusal(f"it greets with {words!r}, as no SSH server does", "check the port")
        return _blamed(refusal, self.socket)


def reach(login: Login) -> Line:
    """Return a line to a server that speaks; Refusal tells why there is none."""
    connection = ProxySocket(login.proxy) if login.proxy else _dial(login)
    connection.settimeout(login.timeout)
    try:
        return Line(connection, _greeting(connection))
    except TimeoutError:
        connection.close()
        raise _blamed(SILENT, connection) from None
    except Refusal as refusal:
        connection.close()
        raise _blamed(refusal, connection) from refusal


async def reach_async(login: Login) -> Line:
    """Return a line to a server that speaks; Refusal tells why there is none."""
    if login.proxy:
        connection: socket.socket = await asyncio.to_thread(ProxySocket, login.proxy)
    else:
        connection = await _dial_async(login)
    connection.setblocking(False)
    try:
        async with asyncio.timeout(login.timeout):
            await _readable(connection)
        return Line(connection, _greeting(connection))
    except (TimeoutError, Refusal) as error:
        connection.close()
        why = error if isinstance(error, Refusal) else SILENT
        raise await asyncio.to_thread(_blamed, why, connection) from error
    except BaseException:
        connection.close()
        raise


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def _greeting(connection: socket.socket) -> bytes:
    """Return the first words of the server, which speaks before the client does.

    An sshd that is too busy hangs up without one; the libraries would not tell that from other
    errors.
    """
    try:
        words = connection.recv(200, socket.MSG_PEEK)
    except ConnectionError as error:
        raise dropped(error.strerror or str(error)) from error
    if not words:
        raise dropped("it said nothing")
    return words


def _dial(login: Login) -> socket.socket:
    try:
        return _watched(socket.create_connection((login.host, login.port), login.timeout))
    except OSError as error:
        raise network_refusal(error) from error


async def _dial_async(login: Login) -> socket.socket:
    try:
        async with asyncio.timeout(login.timeout):
            return _watched(await _first_that_answers(login.host, login.port))
    except OSError as error:  # TimeoutError is one
        raise network_refusal(error) from error


async def _first_that_answers(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


def _watched(connection: socket.socket) -> socket.socket:
    """Let the kernel end a connection whose peer is dead; paramiko would not notice."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER * 1000)
    return connection


class ProxySocket(socket.socket):
    """One end of a socket pair; the other is stdin and stdout of a proxy command.

    paramiko's ProxyCommand spins for ever when the command ends, and stops when it has written
    64 KiB to stderr; asyncssh's tells nothing of stderr.
    """

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        with theirs:
            try:
                self._process = subprocess.Popen(
                    shlex.split(command),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                super().close()
                raise Refusal(f"host_proxy_cmd cannot be run: {error}", TRY_BY_HAND) from error
        self._stderr = Tail()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        """Read stderr to its end, then reap the command."""
        pipe = self._process.stderr
        assert pipe is not None
        with pipe:
            while data := os.read(pipe.fileno(), CHUNK):
                self._stderr.add(data)
        self._process.wait()

    def close(self) -> None:
        """Close the socket; the command ends by itself, or is ended."""
        super().close()
        if self._listener.is_alive():
            threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        self._listener.join(FAREWELL)
        with suppress(OSError):
            self._process.terminate()

    def refusal(self, cause: Refusal) -> Refusal:
        """Return why a connection failed, in the command's own words."""
        self._listener.join(1.0)
        said = str(self._stderr).strip()[-2000:] or "nothing"
        status = self._process.poll()
        how = f"still runs, but {cause.cause}" if status is None else f"ended with status {status}"
        return Refusal(f"host_proxy_cmd {how}; its stderr: {said}", TRY_BY_HAND, Patience.SHORT)


def _blamed(refusal: Refusal, connection: socket.socket) -> Refusal:
    """Return whose fault it is that no server spoke: the proxy command's, if there is one."""
    if isinstance(connection, ProxySocket):
        return connection.refusal(refusal)
    return refusal


def proxy_command(template: str, host: str, port: int, user: str) -> str:
    """Return a proxy command with the tokens of ssh_config replaced."""
    tokens = {"%h": host, "%p": str(port), "%r": user, "%%": "%"}
    parts = re.split("(%[hpr%])", template)
    return "".join(tokens.get(part, part) for part in parts)
