"""What ranks note in their metrics file: lines of JSON, read while they are written."""

from __future__ import annotations

import contextlib
import json
import os
import time

from .files import open_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json

CHUNK = 1 << 20
ROWS = 200  # that are told at once


class Metrics:
    """A metrics file, followed.

    :param offset: where to begin, in bytes
    """

    def __init__(self, path: str, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def look(self) -> Json:
        """Return the rows that came since the last look, the offset behind them, and the time.

        Of many rows some are left out, evenly, and never the last one.
        """
        rows = [row for row in map(numbers, self._lines()) if row]
        step = -(-len(rows) // ROWS) or 1
        return {"rows": rows[::-step][::-1], "offset": self._offset, "clock": time.time()}

    def _lines(self) -> list[bytes]:
        data = self._read()
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == CHUNK:  # no line of numbers is as long
            whole = len(data)
        self._offset += whole
        return data[:whole].splitlines()

    def _read(self) -> bytes:
        with contextlib.suppress(OSError):
            fd = open_plain(self._path)
            try:
                if os.fstat(fd).st_size < self._offset:  # it was written anew
                    self._offset = 0
                return os.pread(fd, CHUNK, self._offset)
            finally:
                os.close(fd)
        return b""


def numbers(line: bytes) -> Json:
    """Return the numbers of a line, by their names."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return {name: value for name, value in record.items() if is_number(value)}
    return {}


def is_number(value: object) -> bool:
    """Tell whether a value can be drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
