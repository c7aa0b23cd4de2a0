"""Secrets, masked in lines."""

from __future__ import annotations

import re

from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Hide = Callable[[str], str]


SECRET_LENGTH = 4  # what is shorter would mask half of a log


def hider(secrets: Sequence[str]) -> Hide:
    """Return what masks secrets in a line, as they are and as programs quote them."""
    forms = {line for each in secrets for line in (each, *each.splitlines())}
    forms |= {quoted[1:-1] for each in secrets for quoted in (encode(each), repr(each))}
    words = sorted((each for each in forms if len(each) >= SECRET_LENGTH), key=len, reverse=True)
    if not words:
        return str
    pattern = re.compile("|".join(map(re.escape, words)))
    return lambda line: pattern.sub("***", line)
