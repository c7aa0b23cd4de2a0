"""The supervisor's socket, and who is connected to it."""

from __future__ import annotations

import contextlib
import json
import socket
from array import array

from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .records import Json


class Client:
    """One connection to the supervisor's socket."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.link = link
        self.watches = False
        self._received = b""

    def messages(self) -> list[Json] | None:
        """Return the messages that have come whole, None once the client is gone."""
        try:
            data = self.link.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None

    def reply(self, record: Json, descriptors: Sequence[int] = ()) -> None:
        """Answer, and hand over open files."""
        data = encode(record).encode("utf-8", "replace") + b"\n"
        with contextlib.suppress(OSError):
            self.link.settimeout(1)
            sent = self._hand_over(data, descriptors) if descriptors else 0
            self.link.sendall(data[sent:])
            self.link.setblocking(False)

    def _hand_over(self, data: bytes, descriptors: Sequence[int]) -> int:
        files = array("i", descriptors)
        return self.link.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])

    def poke(self) -> None:
        """Tell a watcher that the journal has grown; one that has not noticed yet needs no more."""
        with contextlib.suppress(OSError):
            self.link.send(b".")


class Desk:
    """The supervisor's socket and who is connected to it."""

    def __init__(self, server: socket.socket) -> None:
        server.setblocking(False)
        self.server = server
        self.clients: list[Client] = []

    def fds(self) -> list[int]:
        """Return the descriptors to wait for."""
        return [self.server.fileno(), *(client.link.fileno() for client in self.clients)]

    def messages(self) -> Iterator[tuple[Client, Json]]:
        """Yield what clients have sent."""
        with contextlib.suppress(OSError):
            while True:
                self.clients.append(Client(self.server.accept()[0]))
        for client in list(self.clients):
            messages = client.messages()
            if messages is None:
                client.link.close()
                self.clients.remove(client)
                messages = [{"verb": "gone"}]
            for message in messages:
                yield client, message

    def poke(self) -> None:
        """Tell all watchers that the journal has grown."""
        for client in self.clients:
            if client.watches:
                client.poke()
