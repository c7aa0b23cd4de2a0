"""A source snapshot is stored."""

from __future__ import annotations

import contextlib
import os
import sys

from ..errors import Refusal, unwritable
from ..files import umask
from ..folders import root_of, source_path, sources_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


def put_source(request: Json, call: Call) -> Json:
    """Store a source snapshot, once it is known to have come whole."""
    import hashlib

    root, size = root_of(request), request["size"]
    path = source_path(root, request["source"])
    draft = f"{path}.{os.getpid()}"
    digest = hashlib.sha256()
    try:
        with umask(0o077):
            os.makedirs(sources_of(root), exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            while size > 0:
                data = sys.stdin.buffer.read(min(size, 1 << 20))
                if not data:
                    raise Refusal("incomplete", f"the source ended {size} bytes early")
                digest.update(data)
                file.write(data)
                size -= len(data)
        if digest.hexdigest() != request["source"]:
            raise Refusal("incomplete", "the source was changed on its way: its SHA-256 differs")
        os.replace(draft, path)
    except OSError as error:
        raise unwritable(root, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
    return {"ok": True, "stored": True}
