"""What the ranks left in their result and metrics files."""

from __future__ import annotations

import contextlib
import json
import os

from ..files import open_plain
from ..node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..call import Call
    from ..records import Json


RESULT_LIMIT = 1 << 20


def result(request: Json, call: Call) -> Json:
    """Return what the ranks left in their result and metrics files."""
    node = Node.of(request)
    value, error, notes = None, None, []
    try:
        text = "".join(lines_of(node.at("result.json"), RESULT_LIMIT))
        value = json.loads(text) if text.strip() else None
        if not text.strip():
            notes.append("$DT_RESULT_FILE is there but empty: the result is null")
    except FileNotFoundError:
        pass
    except OverflowError as large:
        error = f"has {large}; write it to a file of its own, and name that in outputs="
    except OSError as broken:
        notes.append(f"$DT_RESULT_FILE cannot be read, the result is null: {broken.strerror}")
    except (ValueError, RecursionError) as broken:
        error = f"is not JSON: {broken}; write it with json.dump"
    metrics = last_metrics(node)
    return {"ok": True, "result": value, "result_error": error, "metrics": metrics, "notes": notes}


def lines_of(path: str, limit: float = float("inf")) -> Iterator[str]:
    """Yield the lines of what must be a file."""
    with open(open_plain(path), encoding="utf-8", errors="replace") as it:
        size = os.fstat(it.fileno()).st_size
        if size > limit:
            raise OverflowError(f"{size} bytes, the limit is {limit}")
        yield from it


def last_metrics(node: Node) -> Json:
    """Return the last value of each metric."""
    last: Json = {}
    with contextlib.suppress(OSError):
        for line in lines_of(node.at("metrics.jsonl")):
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                last.update(record if isinstance(record, dict) else {})
    return last
