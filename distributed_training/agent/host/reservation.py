"""What a node holds while its job lasts: slots, and ports until its ranks start."""

from __future__ import annotations

import errno
import time

from .errors import preflight_failed, problem
from .facts import user_name
from .locks import Lock
from .network import listen
from .ports import port_taken
from .slots import take_all
from .tickets import Ticket, claimed_slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from .records import Json


class Reservation:
    """The slots and the ports of a node, which others find locked."""

    def __init__(self, key: Json, request: Json) -> None:
        self.slots: list[str] = request.get("slots") or []
        self.ports: list[int] = request.get("ports") or []
        self.ticket = Ticket.of(request)
        self._holder: Json = {**key, "label": request.get("label"), "user": user_name()}
        self._locks: list[Lock] = []
        self._listeners: list[socket.socket] = []

    def take(self) -> None:
        """Take all of it, without waiting; what was taken before a Refusal is still to be released.

        :raises Refusal: if somebody holds some of it, or an older job waits for it
        """
        holder = {**self._holder, "since": time.time()}
        if self.ticket:
            self.ticket.leave()
        self._locks = take_all(self.slots, holder, claimed_slots(self.ticket))
        for port in self.ports:
            self._take_port(port, holder)

    def _take_port(self, port: int, holder: Json) -> None:
        lock = Lock.take(f"port-{port}", holder)
        if lock is None:
            raise port_taken(port)
        self._locks.append(lock)
        try:
            self._listeners.append(listen(port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise port_taken(port) from error
            why = f"{user_name()} cannot listen there: {error.strerror}"
            do = "set master_port= to another, above 1023, or leave it out"
            raise preflight_failed([problem(f"port {port} cannot be used", why, do)]) from error

    def descriptors(self) -> list[int]:
        """Return what ranks inherit: the locks hold until the last of them has ended."""
        return [lock.fd for lock in self._locks]

    def refresh(self) -> None:
        """Keep cleaners of /tmp from taking the locks for forgotten."""
        for lock in self._locks:
            lock.refresh()

    def fulfil(self) -> None:
        """Take the wish for the slots back: the ranks have them."""
        if self.ticket:
            self.ticket.withdraw()

    def release_ports(self) -> None:
        """Leave the ports to the ranks that will listen on them."""
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def release(self, inherited: bool) -> None:
        """Give everything back.

        :param inherited: processes live that hold the locks on
        """
        self.release_ports()
        for lock in self._locks:
            lock.release(remove=not inherited)
