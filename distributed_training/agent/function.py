"""Runs in each rank of a task that is a function: calls it, and keeps what rank 0 returns."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INSTEAD = "float(loss), array.tolist(), str(path), day.isoformat(), dataclasses.asdict(config)"


def plain(value: Any, name: str) -> Any:
    """Return a value as JSON has it: a tuple as a list, a framework's number as a number.

    :param name: what it is called, for the error
    :raises TypeError: JSON has no such value
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key_of(key, name): plain(each, f"{name}[{key!r}]") for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [plain(each, f"{name}[{at}]") for at, each in enumerate(value)]
    number = number_of(value)
    if number is not None:
        return number
    kind = f"{type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    raise TypeError(f"{name} is {kind}, which JSON has not; give it as JSON has it: {INSTEAD}")


def key_of(key: Any, name: str) -> str:
    """Return a key of a dict; json.dumps would silently make a text of others."""
    if not isinstance(key, str):
        raise TypeError(f"{name} has the key {key!r}, and JSON has text alone for keys; use str()")
    return key


def number_of(value: Any) -> bool | int | float | None:
    """Return a single number of NumPy, torch or JAX as Python's own, or None if it is none."""
    if not hasattr(value, "item") or getattr(value, "shape", None) != ():
        return None
    number = value.item()
    return number if isinstance(number, (bool, int, float)) else None


def main() -> None:
    """Call the function that the command line names."""
    name = sys.argv.pop()  # what the function calls may read the command line, too
    call = json.loads(os.environ.pop("DT_ARGUMENTS"))
    function = getattr(importlib.import_module(f"{__package__}.{name}"), name)
    value = function(*call["args"], **call["kwargs"])
    if os.environ["DT_RANK"] == "0":
        keep(f"{name}()", value, os.environ["DT_RESULT_FILE"], call["multiple_outputs"])


def keep(name: str, value: Any, path: str, multiple_outputs: bool) -> None:
    """Write what rank 0 returns, as a whole or not at all.

    :raises TypeError: JSON has no such value, or it is no dict where that is needed
    """
    if multiple_outputs and not isinstance(value, (Mapping, type(None))):
        raise TypeError(f"{name} is {type(value).__name__}; multiple_outputs=True takes a dict")
    new = Path(f"{path}.new")
    new.write_text(json.dumps(plain(value, name)))
    new.replace(path)


if __name__ == "__main__":
    main()
