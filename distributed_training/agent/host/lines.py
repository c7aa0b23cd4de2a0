"""Lines of logs, as a terminal would show them."""

from __future__ import annotations

import codecs
import re

TYPE_CHECKING = False


LINE_LIMIT = 16 << 10
PARTIAL_AFTER = 1.0  # seconds until a line without newline is shown
PROGRESS_EVERY = 2.0  # seconds between two states of a progress bar
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CLEANING = re.compile(
    "(\x1b\\[[0-9;:]*m)"  # colours stay
    "|\x1b\\[[0-?]*[ -/]*[@-~]"  # cursor movements and the like
    "|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # window titles, links
    "|\x1b[ -/]*[0-~]"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def clean(line: str) -> str:
    """Return the text that a terminal would show of a line, colours included."""
    if not CONTROL.search(line):
        return line
    return CLEANING.sub(r"\1", line.rstrip("\r").rpartition("\r")[2])


class LineBuffer:
    """Bytes in, clean lines out; never cuts inside a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._shown = False
        self._fed = 0.0
        self._progress = 0.0

    def feed(self, data: bytes, now: float) -> list[str]:
        """Return the lines that these bytes complete."""
        self._fed = now
        return self._feed(self._decoder.decode(data), now)

    def _feed(self, text: str, now: float) -> list[str]:
        complete = (self._partial + text).split("\n")
        self._partial = complete.pop()
        if complete and self._shown:
            self._shown = False
            if not complete[0].rstrip("\r"):  # only the end of what was shown
                del complete[0]
        lines = [piece for line in complete for piece in pieces(clean(line))]
        if "\r" in self._partial:
            lines += self._progress_state(now)
        *whole, self._partial = pieces(self._partial)
        return lines + [clean(piece) for piece in whole]

    def _progress_state(self, now: float) -> list[str]:
        head = self._partial.rstrip("\r").rpartition("\r")[0]
        self._partial = self._partial[len(head) + 1 if head else 0 :]
        if not head or now - self._progress < PROGRESS_EVERY:
            return []
        self._progress = now
        return pieces(clean(head))

    def idle(self, now: float) -> list[str]:
        """Return a line that waits for its end, once nothing came for a while."""
        return self._show() if self._partial and now - self._fed > PARTIAL_AFTER else []

    def close(self) -> list[str]:
        """Return what is left at the end of the log."""
        lines = self._feed(self._decoder.decode(b"", final=True), self._fed)
        return lines + (self._show() if self._partial else [])

    def _show(self) -> list[str]:
        line, self._partial, self._shown = clean(self._partial), "", True
        return [line] if line else []


def pieces(line: str) -> list[str]:
    """Return a line cut to pieces that a journal can bear, but not inside a colour."""
    found = []
    while len(line) > LINE_LIMIT:
        escape = line.rfind("\x1b", LINE_LIMIT - 64, LINE_LIMIT)
        at = escape if escape > 0 else LINE_LIMIT
        found.append(line[:at])
        line = line[at:]
    return [*found, line]
