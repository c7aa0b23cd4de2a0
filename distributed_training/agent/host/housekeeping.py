"""Ended jobs and sources that are old are removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from .children import detach
from .errors import Refusal
from .files import remove_tree, tree_size, umask
from .folders import root_of, sources_of
from .node import nodes
from .tending import tend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Json


HOUSEKEEPING_EVERY = 3600.0
COLLECTED_AFTER = 3600.0  # a job that has just ended may still be asked for its results
KEEP_DAYS = 7.0


class Leftover:
    """An ended job or a source that nobody may need any more."""

    def __init__(self, name: str, path: str, keep_days: float, used: str) -> None:
        self.name = name
        self.path = path
        self.keep_days = keep_days
        self.age = time.time() - os.stat(used).st_mtime
        self.size = tree_size(path)

    def remove(self) -> None:
        """Remove it, and the folders that are empty then."""
        remove_tree(self.path)
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        for _ in range(2 if "/" in self.name else 0):
            self.path = os.path.dirname(self.path)
            with contextlib.suppress(OSError):
                os.rmdir(self.path)


def leftovers(root: str, request: Json) -> Iterator[Leftover]:
    """Yield what may go: each job says itself for how long it is kept, unless the request does."""
    asked = request.get("keep_days")
    for node in list(nodes(root)):
        tend(node)
        if node.ended():
            own = node.state().get("keep_days") if asked is None else asked
            keep = KEEP_DAYS if own is None else float(own)
            yield Leftover(node.mark, node.path, keep, node.journal)
    keep = float(KEEP_DAYS if asked is None else asked)
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(sources_of(root))):
            yield Leftover(entry.name, entry.path, keep, entry.path)


def tidy(request: Json) -> Json:
    """Remove ended jobs and sources that are old, and the oldest beyond a size."""
    root = root_of(request)
    removed, size, total = [], 0, 0
    with alone(root):
        found = sorted(leftovers(root, request), key=lambda each: -each.age)
        total = sum(each.size for each in found)
        for each in found:
            old = each.age > each.keep_days * 86400
            over = total - size > (request.get("max_bytes") or float("inf"))
            if (old or over) and each.age >= float(request.get("spare") or 0):
                removed.append(each.name)
                size += each.size
                if not request.get("dry_run"):
                    each.remove()
    return {"ok": True, "removed": removed, "bytes": size, "left": total - size}


@contextlib.contextmanager
def alone(root: str) -> Iterator[None]:
    """Clean up while nobody else does, and leave the date of it."""
    with umask(0o077):
        os.makedirs(root, exist_ok=True)
    fd = os.open(house_path(root), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(fd)
        yield
    except BlockingIOError as error:
        raise Refusal("busy", "another call cleans up here; try again in a minute") from error
    finally:
        os.close(fd)


def house_path(root: str) -> str:
    """Return the file that is locked by who cleans up, and dates the last time."""
    return os.path.join(root, "housekeeping")


def keep_house(root: str, request: Json) -> None:
    """Clean up beside a start, now and then."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - os.stat(house_path(root)).st_mtime < HOUSEKEEPING_EVERY:
            return

    def clean() -> None:
        os.nice(19)
        limits = {"max_bytes": request.get("max_bytes"), "spare": COLLECTED_AFTER}
        tidy({"root": root, **limits})

    detach(clean, os.devnull)
