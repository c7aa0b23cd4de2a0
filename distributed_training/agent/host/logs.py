"""The logs of a node, followed into its journal."""

from __future__ import annotations

import os
import time

from .lines import LineBuffer, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .journal import Journal
    from .masking import Hide


LOG_SLICE = 0.03  # seconds of reading logs before the socket is looked at again
LOG_CHUNK = 64 << 10
LOG_LIMIT = 64 << 20  # bytes of log that go into one node's journal
LINE_COST = 40  # bytes that a line of log takes in the journal beside its text
JOURNAL_BACKLOG = 1 << 20
TAIL_BYTES, TAIL_LINES, TAIL_WIDTH = 512 << 10, 50, 500


def log_end(path: str, hide: Hide) -> list[str]:
    """Return the end of a log."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    if size > TAIL_BYTES and "\n" in text.rstrip("\n"):
        text = text.partition("\n")[2]
    lines = text.rstrip("\n").split("\n") if text else []
    return [hide(clean(line))[:TAIL_WIDTH] for line in lines]


class LogTail:
    """One log file, followed from its start."""

    def __init__(self, path: str, source: object) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.source = source
        self.lines = LineBuffer()
        self.offset = 0

    def read(self, limit: int) -> tuple[int, list[str]]:
        """Return the number of bytes that were new, and the lines to show."""
        now = time.monotonic()
        data = os.pread(self.fd, limit, self.offset)
        self.offset += len(data)
        return len(data), self.lines.feed(data, now) if data else self.lines.idle(now)

    def unread(self) -> int:
        """Return the number of bytes not read yet."""
        return max(0, os.fstat(self.fd).st_size - self.offset)


class Logs:
    """The logs of a node, poured into its journal up to a limit.

    :param hear: called with all lines, too
    """

    def __init__(
        self, folder: str, journal: Journal, hear: Callable[[Sequence[str]], None]
    ) -> None:
        self.folder = folder
        self.journal = journal
        self._hear = hear
        self._tails: list[LogTail] = []
        self._left = LOG_LIMIT
        self.behind = False

    def add(self, name: str, source: object) -> None:
        """Follow one more log."""
        self._tails.append(LogTail(os.path.join(self.folder, f"{name}.log"), source))

    def follow(self) -> bool:
        """Pour in what is new, for a short while, and tell whether anything was."""
        until = time.monotonic() + LOG_SLICE
        self.behind = busy = False
        while self._left > 0 and self.journal.backlog < JOURNAL_BACKLOG and self._round():
            busy = True
            if time.monotonic() > until:
                self.behind = True
                break
        return busy

    def _round(self) -> int:
        read = 0
        chunk = max(LOG_CHUNK // len(self._tails), 4096) if self._tails else 0
        for tail in self._tails:
            size, lines = tail.read(chunk)
            self.journal.log(tail.source, lines)
            self._hear(lines)
            read += size
            self._left -= size + LINE_COST * len(lines)
        if self._left <= 0:
            self.journal.add("note", m=f"too much log: from here on it is only in {self.folder}")
        return read

    def finish(self) -> None:
        """Pour in the lines that never got their end, and say how much was left out."""
        for tail in self._tails:
            self.journal.log(tail.source, tail.lines.close())
        left_out = sum(tail.unread() for tail in self._tails)
        if left_out:
            self.journal.add("note", m=f"{left_out} bytes of log are only in {self.folder}")
