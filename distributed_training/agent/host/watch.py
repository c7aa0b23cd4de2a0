"""A client that follows a journal."""

from __future__ import annotations

import contextlib
import os
import re
import select
import time

from .files import read_text, write_whole
from .journal import SEND_CHUNK
from .metrics import Metrics
from .records import encode
from .tending import tend
from .usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node
    from .records import Json


ALIVE_EVERY = 5.0
CLIENT_TIMEOUT = 60.0


class Watch:
    """A client that follows a journal: lines go out, acknowledgements and renewals come in."""

    def __init__(
        self,
        node: Node,
        journal: int,
        offset: int,
        received: bytes,
        owner: str = "",
        renews: bool = True,
        metrics: int = 0,
    ) -> None:
        self.node = node
        self.owner = owner
        self.renews = renews
        self.journal = journal
        self.offset = offset
        self.link = node.connect()
        self.ended = False
        self._usage = Usage(node) if owner else None
        self._metrics = Metrics(node.at("metrics.jsonl"), metrics)
        self._outgoing = b""
        self._received = received
        self._heard = self._looked = time.monotonic()
        self._tended = False
        if self.link:
            self.link.setblocking(False)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self._tell(encode({"verb": "watch", "renews": renews}).encode() + b"\n")

    def run(self) -> None:
        """Serve the client until it goes, falls silent, is replaced or has the last line."""
        while self._outgoing or not self.ended:
            ready = self._wait()
            if not self._listen(ready) or time.monotonic() - self._heard > CLIENT_TIMEOUT:
                return
            if self.owner and self.owner != read_text(self.node.at("owner")):
                return
            self._follow(ready)
            self._send()

    def _wait(self) -> dict[int, int]:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(1, select.POLLOUT if self._outgoing else 0)
        if self.link:
            poll.register(self.link, select.POLLIN)
        return dict(poll.poll(1000 if self.link else 100))

    def _listen(self, ready: dict[int, int]) -> bool:
        gone = bool(ready.get(1, 0) & (select.POLLERR | select.POLLHUP))
        if 0 in ready or gone:  # the last acknowledgement may have come with the end
            with contextlib.suppress(BlockingIOError):
                data = os.read(0, 1 << 16)
                gone = gone or not data
                self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._heard = time.monotonic()
            if self.owner:
                with contextlib.suppress(OSError):
                    os.utime(self.node.at("owner"))
            self._obey(line)
        return not gone

    def _obey(self, line: bytes) -> None:
        if re.fullmatch(rb"ack \d+", line):
            with contextlib.suppress(OSError):  # a full disk: the next watcher reads lines again
                write_whole(self.node.at("acknowledged"), line[4:])
        if self.renews:
            self._tell(b'{"verb":"renew"}\n')

    def _tell(self, message: bytes) -> None:
        if self.link:
            with contextlib.suppress(OSError):
                self.link.sendall(message)

    def _follow(self, ready: dict[int, int]) -> None:
        if self.link and self.link.fileno() in ready:
            if not self._poked():
                self.link.close()
                self.link = None
        elif not self.link and not self._tended and not self.node.agents():
            self._tended = True
            tend(self.node)
        self._fill()
        if time.monotonic() - self._looked > ALIVE_EVERY:
            self._looked = time.monotonic()
            self._outgoing += self._sign_of_life()

    def _sign_of_life(self) -> bytes:
        """Return a line that is no part of the journal, which holds whole lines till here."""
        sign: Json = {"k": "alive", "output": self.node.output()}
        if self._usage:
            sign.update(usage=self._usage.look(), metrics=self._metrics.look())
        return encode(sign).encode() + b"\n"

    def _poked(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.link and self.link.recv(4096))
        return False

    def _fill(self) -> None:
        size = SEND_CHUNK
        while len(self._outgoing) < SEND_CHUNK:
            data = os.pread(self.journal, size, self.offset)
            whole = data.rfind(b"\n") + 1
            if not whole and len(data) < size:
                return
            size *= 1 if whole else 2
            self.offset += whole
            # Quotation marks in a string are escaped, so this is nothing that a rank has printed.
            if b'"k":"ended"' in data[:whole]:
                self.ended = True
                self._outgoing += self._sign_of_life()  # with what was measured last
            self._outgoing += data[:whole]

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if self._outgoing:
                sent = os.write(1, self._outgoing[:SEND_CHUNK])
                self._outgoing = self._outgoing[sent:]
