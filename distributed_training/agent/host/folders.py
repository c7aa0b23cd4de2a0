"""Where what is ours lies on a host."""

from __future__ import annotations

import os
import re

from .errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


def root_of(request: Json) -> str:
    """Return the folder under which everything of ours on this host lies."""
    root = request.get("root") or "~/.distributed_training"
    return os.path.abspath(os.path.expanduser(root))


def sources_of(root: str) -> str:
    """Return the folder of the source snapshots."""
    return os.path.join(root, "sources")


def source_path(root: str, sha: str) -> str:
    """Return the path of a source snapshot."""
    if not re.fullmatch(r"[0-9a-f]{64}", str(sha)):
        raise Refusal("bad_request", f"not a SHA-256: {sha!r}")
    return os.path.join(sources_of(root), f"{sha}.tar")
