"""SSH connections to one host: made with patience, shared by channels, replaced when lost."""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from distributed_training.errors import ConnectionLost, HostUnreachable
from distributed_training.transport.base import Channel, Transport

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from distributed_training.fleet import Host

log = logging.getLogger(__name__)
Connection = TypeVar("Connection")


class Patience(Enum):
    """How often, and within how many seconds, it makes sense to try again."""

    NONE = (1, 0.0)  # the answer will be the same
    SHORT = (3, 5.0)  # a host or its sshd that restarts, a name server that hiccups
    LONG = (100, 60.0)  # an sshd that is busy with others (MaxStartups)


class Refusal(Exception):
    """One try to connect that failed: why, what to do, and whether to try again."""

    def __init__(self, cause: str, advice: str, patience: Patience = Patience.NONE) -> None:
        super().__init__(f"{cause}; {advice}")
        self.cause = cause
        self.patience = patience


class ChannelRefused(Exception):
    """A working connection that takes no further channel: sshd's MaxSessions are open on it."""


@dataclass(eq=False, slots=True)
class Link(Generic[Connection]):
    """A connection, and how many channels were asked of it."""

    connection: Connection
    asked: int = 0


class SshTransport(Transport, Generic[Connection]):
    """A host behind SSH; a library supplies how to connect and to open a channel."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._links: list[Link[Connection]] = []
        self._connecting = asyncio.Lock()

    @property
    def target(self) -> str:
        """The host as messages name it, with what SSH was told."""
        host = self.host
        name = f"[{host.ssh_host}]" if ":" in host.ssh_host else host.ssh_host
        user = f"{host.user}@" if host.user else ""
        return f"{host.name} ({user}{name}:{host.port or 22})"

    async def open(self, command: str) -> Channel:
        """Start a command on a connection that works, making one if there is none."""
        channel, _ = await self.open_on_link(command)
        return channel

    async def open_on_link(self, command: str) -> tuple[Channel, Link[Connection]]:
        """Start a command, and tell on which connection."""
        full: list[Link[Connection]] = []
        while True:
            link = await self._usable(full)
            link.asked += 1
            try:
                return await self._start(link.connection, command), link
            except ChannelRefused as error:
                if link.asked == 1:
                    raise self._unreachable(f"it opens no session: {error}") from error
                full.append(link)
            except ConnectionLost:
                # Found to be dead only now. A fresh one that dies at once is another matter.
                self.forget(link)
                if link.asked == 1:
                    raise

    async def close(self) -> None:
        """End all connections; `open` makes new ones."""
        links, self._links = self._links, []
        for link in links:
            await self.end(link)

    async def end(self, link: Link[Connection]) -> None:
        """End one connection."""
        self.forget(link)
        await self._end(link.connection)

    def forget(self, link: Link[Connection]) -> None:
        """Open no further channel on a connection."""
        with suppress(ValueError):
            self._links.remove(link)

    async def _usable(self, full: list[Link[Connection]]) -> Link[Connection]:
        async with self._connecting:  # one at a time, so that all who wait share the same one
            for link in self._links:
                if link not in full and self._alive(link.connection):
                    return link
            link = Link(await self._connect_patiently())
            self._links.append(link)
            return link

    async def _connect_patiently(self) -> Connection:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Refusal),
            wait=wait_random_exponential(multiplier=0.25, max=4),
            stop=_patience_ends,
            before_sleep=self._tell,
            reraise=True,
        )
        try:
            return await retrying(self._connect)
        except Refusal as error:
            raise self._unreachable(str(error)) from error

    def _tell(self, state: RetryCallState) -> None:
        log.info("Cannot reach %s yet, trying again: %s", self.target, _error(state))

    def _unreachable(self, why: str) -> HostUnreachable:
        return HostUnreachable(f"cannot reach {self.target}: {why}", host=self.host.name)

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.target} broke; what runs there may well go on",
            host=self.host.name,
        )

    @abstractmethod
    async def _connect(self) -> Connection:
        """Return a new connection; Refusal tells why there is none."""

    @abstractmethod
    async def _start(self, connection: Connection, command: str) -> Channel:
        """Start a command; ChannelRefused or ConnectionLost tells why not."""

    @abstractmethod
    def _alive(self, connection: Connection) -> bool:
        """Tell whether a connection is not known to be broken."""

    @abstractmethod
    async def _end(self, connection: Connection) -> None:
        """End a connection."""


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _patience_ends(state: RetryCallState) -> bool:
    error = _error(state)
    tries, seconds = error.patience.value if isinstance(error, Refusal) else Patience.NONE.value
    passed = (state.seconds_since_start or 0.0) + state.upcoming_sleep
    return state.attempt_number >= tries or passed > seconds


def dropped(detail: str) -> Refusal:
    """Return the refusal of a server that hung up before it asked who we are."""
    return Refusal(
        f"the SSH server closed the connection before login ({detail})",
        "it may have too many connections opening at once (MaxStartups in its sshd_config), "
        "or it refuses this address",
        Patience.LONG,
    )


def network_refusal(error: OSError) -> Refusal:
    """Return why no TCP connection came about."""
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, socket.gaierror):
        again = Patience.SHORT if error.errno == socket.EAI_AGAIN else Patience.NONE
        advice = "check ssh= and the name in the host list, or the name server of this machine"
        return Refusal(f"its name has no address ({reason})", advice, again)
    if isinstance(error, TimeoutError):
        advice = "the host may be down, or a firewall in between; conn_timeout allows more time"
        return Refusal(f"no answer in time ({reason})", advice, Patience.SHORT)
    if isinstance(error, ConnectionRefusedError):
        advice = "check that sshd runs there, and port= in the host list or the connection"
        return Refusal("nobody listens on that port", advice, Patience.SHORT)
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return dropped(reason)
    return Refusal(reason, "check the network between here and there", Patience.SHORT)
