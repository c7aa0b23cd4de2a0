"""The tracebacks that programs leave in logs and error files."""

from __future__ import annotations

import re

from .files import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


TRACE_HEAD, TRACE_LINES, MESSAGE_LINES = 15, 60, 8
TRACEBACK = re.compile(r"(  \+ Exception Group )?Traceback \(most recent call last\):")
CHAINED = re.compile(r"(During handling of|The above exception was the direct cause)")
ASIDE = re.compile(r"Exception (ignored )?in")  # threads and finalizers do not end a program
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ")  # torch.distributed puts it before each line


def traceback_of(log: Sequence[str]) -> list[str]:
    """Return the last traceback of a log with what led to it, whatever was printed after it."""
    lines = [RANK_PREFIX.sub("", line) for line in log]
    starts = [at for at, line in enumerate(lines) if TRACEBACK.match(line)]
    starts = [at for at in starts if not (at and ASIDE.match(lines[at - 1]))]
    if not starts:
        return []
    first = last = starts.pop()
    while starts and any(map(CHAINED.match, lines[starts[-1] : first])):
        first = starts.pop()
    end = last + 1
    while end < len(lines) and (not lines[end] or lines[end][0] == " "):
        end += 1
    limit = end + MESSAGE_LINES
    while end < min(limit, len(lines)) and lines[end] and lines[end][0] != "[":
        end += 1
    return shortened(lines[first:end])


def shortened(lines: Sequence[str]) -> list[str]:
    """Return lines without their middle if they are too many: both ends of a traceback count."""
    if len(lines) <= TRACE_LINES:
        return list(lines)
    rest = TRACE_LINES - TRACE_HEAD
    return [*lines[:TRACE_HEAD], f"... {len(lines) - TRACE_LINES} lines ...", *lines[-rest:]]


def torch_error(path: str) -> list[str]:
    """Return the traceback in an error file as torch's `record` writes it."""
    message = read_json(path).get("message") or {}
    if not isinstance(message, dict):
        return str(message).splitlines()
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message") or "").splitlines()
