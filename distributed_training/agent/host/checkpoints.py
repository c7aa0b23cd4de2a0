"""The newest complete checkpoint in a folder."""

from __future__ import annotations

import contextlib
import os
import re

from .checkpoint_layouts import Checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Json


MARKED_SEEN = 100  # so many of the newest show whether a script marks what is complete
PASSED_OVER = 10
UNFINISHED = re.compile(r"\.|tmp-|.*\.tmp$")
CHECKPOINT_FILES = (".pt", ".pth", ".ckpt", ".index")


def newest_checkpoint(folder: str) -> Json:
    """Return the newest complete checkpoint in a folder, and what looks newer but is not whole."""
    folder = os.path.normpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(folder)))
    passed_over: list[Json] = []
    newest = None
    try:
        found = newest_first(folder)
        marking = any(each.marked() for each in found[:MARKED_SEEN])
        for each in found:
            why = each.flaw(marking)
            if not why:
                newest = each.record()
                break
            passed_over.append({"path": each.path, "why": why})
    except FileNotFoundError:
        pass  # nothing was saved yet
    except OSError as error:
        passed_over.append({"path": folder, "why": f"cannot be read: {error.strerror}"})
    return {"checkpoint": newest, "checkpoints_passed_over": passed_over[:PASSED_OVER]}


def newest_first(folder: str) -> list[Checkpoint]:
    """Return what may be a checkpoint."""
    import heapq

    found = sorted(candidates(folder), key=lambda each: (each.step or 0, each.changed))
    numbered = [each for each in reversed(found) if each.step is not None]
    others = [each for each in reversed(found) if each.step is None]
    others = [each for each in others if each.marked() or each.layout()[0]]
    # Steps keep their order, whatever the times; what names no step has its place by time.
    return list(heapq.merge(numbered, others, key=lambda each: each.changed, reverse=True))


def candidates(folder: str) -> Iterator[Checkpoint]:
    """Yield what may be a checkpoint by its own name."""
    entries = list(os.scandir(folder))
    names = [each.name for each in entries]
    for entry in entries:
        if UNFINISHED.match(entry.name):
            continue
        with contextlib.suppress(OSError):  # a link to nothing, or removed meanwhile
            if entry.name.endswith(CHECKPOINT_FILES) or entry.is_dir():
                yield Checkpoint(entry.path, names if entry.name.endswith(".index") else ())
