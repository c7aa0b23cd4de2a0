"""One request, and the way to answer it."""

from __future__ import annotations

import json
import os
import re
import sys

from .errors import Refusal
from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


class Call:
    """One request and the way to answer it."""

    def __init__(self, line: bytes) -> None:
        match = re.search(rb'"marker"\s*:\s*"(\w+)"', line)
        self.marker = match.group(1) if match else b""
        self.line = line
        self.answered = False

    def parse(self) -> Json:
        """Return the request."""
        try:
            request = json.loads(self.line)
        except ValueError as error:
            raise Refusal("bad_request", f"the request is not JSON: {error}") from error
        if not isinstance(request, dict):
            raise Refusal("bad_request", "the request is not an object")
        return request

    def reply(self, record: Json) -> None:
        """Answer, after a marker that tells the answer from what login scripts print."""
        self.answered = True
        line = encode(record).encode("utf-8", "replace")
        sys.stdout.buffer.write(b"\n" + self.marker + b"\n" + line + b"\n")
        sys.stdout.buffer.flush()


def buffered_stdin() -> bytes:
    """Return what Python has read from stdin beyond the request."""
    os.set_blocking(0, False)
    return sys.stdin.buffer.read(1 << 16) or b""
