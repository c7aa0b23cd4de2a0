"""Connections that several jobs use at once: the first makes them, the last ends them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from distributed_training.transport.base import Channel, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable

    from distributed_training.transport.connections import Link, SshTransport


class Shared:
    """A transport, and those who use each of its connections."""

    def __init__(self, transport: SshTransport[Any]) -> None:
        self.transport = transport
        self.borrowers: set[Borrowed] = set()
        self.users: dict[Link[Any], set[Borrowed]] = {}


class Borrowed(Transport):
    """One user's part in a shared transport."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.transport.host)
        self._shared = shared
        self._channels: WeakSet[Channel] = WeakSet()

    async def open(self, command: str) -> Channel:
        """Start a command on a shared connection."""
        channel, link = await self._shared.transport.open_on_link(command)
        self._channels.add(channel)
        self._shared.users.setdefault(link, set()).add(self)
        return channel

    async def close(self) -> None:
        """Turn away from the connections used so far, which may be broken.

        Others keep theirs for as long as they find them good; new channels go elsewhere.
        """
        await self._close_channels()
        for link, users in list(self._shared.users.items()):
            if self in users:
                users.discard(self)
                self._shared.transport.forget(link)
                if not users:
                    del self._shared.users[link]
                    await self._shared.transport.end(link)

    async def leave(self) -> None:
        """Stop using what may well be in order."""
        await self._close_channels()
        for users in self._shared.users.values():
            users.discard(self)

    async def _close_channels(self) -> None:
        for channel in list(self._channels):
            await channel.close()


class Exchange:
    """The transports that are in use, each under a key that tells what it leads to and how."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, Shared] = {}

    @asynccontextmanager
    async def borrow(self, key: Hashable, transport: SshTransport[Any]) -> AsyncIterator[Transport]:
        """Yield a way over the connections of this key; the one given is used if it is new."""
        shared = self._shared.setdefault(key, Shared(transport))
        borrowed = Borrowed(shared)
        shared.borrowers.add(borrowed)
        try:
            yield borrowed
        finally:
            shared.borrowers.discard(borrowed)
            if not shared.borrowers:
                del self._shared[key]
            await borrowed.leave()
            if not shared.borrowers:
                await self._end(shared)

    async def _end(self, shared: Shared) -> None:
        await shared.transport.close()
        for link in list(shared.users):  # those that were turned away from
            await shared.transport.end(link)
