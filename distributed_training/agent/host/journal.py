"""The journal of a node: what happened, line by line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time

from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .masking import Hide
    from .records import Json


SEND_CHUNK = 256 << 10


class Journal:
    """The append-only record of a node's part in a job."""

    def __init__(self, path: str, hide: Hide = str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._hide = hide
        self._lines: list[str] = []
        self._rest = b""
        self._fresh = True
        self.backlog = 0
        self.refused = ""  # why something could not be written at once

    def add(self, kind: str, **fields: object) -> None:
        """Add an event."""
        self._append(encode({"t": round(time.time(), 3), "k": kind, **fields}))

    def log(self, source: object, lines: Sequence[str]) -> None:
        """Add lines of a log."""
        head = f'{{"t":{time.time():.3f},"k":"log","r":{encode(source)},"m":'
        for line in lines:
            self._append(head + encode(self._hide(line)) + "}")

    def _append(self, line: str) -> None:
        self._lines.append(line + "\n")
        self.backlog += len(line)

    def flush(self) -> bool:
        """Write what was added; what a full disk refuses stays for the next time."""
        if not self._lines and not self._rest:
            return False
        with self._alone():
            self._write()
        return True

    def _write(self) -> None:
        if self._fresh:
            self._repair()
        data = self._rest + "".join(self._lines).encode("utf-8", "replace")
        self._lines = []
        size = os.fstat(self.fd).st_size
        try:
            written = os.write(self.fd, data)
            whole = data.rfind(b"\n", 0, written) + 1
            if whole < written:
                os.ftruncate(self.fd, size + whole)
            data = data[whole:]
        except OSError as error:
            self.refused = error.strerror or str(error)
        self._rest, self.backlog = data, len(data)

    def _repair(self) -> None:
        # Whoever wrote before may have been killed in the middle of a line.
        self._fresh = False
        size = os.fstat(self.fd).st_size
        block = os.pread(self.fd, SEND_CHUNK, max(0, size - SEND_CHUNK))
        rest = len(block) - block.rfind(b"\n") - 1
        if rest:
            os.ftruncate(self.fd, size - rest)

    def add_unless_ended(self, *records: tuple[str, Json]) -> bool:
        """Write events, unless someone has written the end, and tell whether they were written."""
        with self._alone():
            if last_record(self.fd).get("k") == "ended":
                return False
            for kind, fields in records:
                self.add(kind, **fields)
            self._write()
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with contextlib.suppress(OSError):  # not every network file system has locks
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_UN)


def last_record(fd: int) -> Json:
    """Return the last whole record of a journal."""
    size = os.fstat(fd).st_size
    block = os.pread(fd, SEND_CHUNK, max(0, size - SEND_CHUNK))
    for line in reversed(block.splitlines()):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                return record
    return {}


def events(path: str, until: float = float("inf")) -> Iterator[Json]:
    """Yield the records of a journal up to an offset, log lines left out."""
    read = 0
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            read += len(line)
            if read > until:
                return
            if b',"k":"log",' not in line[:48]:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
