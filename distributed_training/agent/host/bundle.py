"""The archive that this program runs from."""

from __future__ import annotations

import os

# A file, or a descriptor that the command which started this call has opened.
PATH = os.path.dirname(os.path.dirname(__file__))


def read() -> bytes:
    """Return the archive."""
    with open(PATH, "rb") as file:
        return file.read()


def descriptors() -> list[int]:
    """Return the descriptors without which no more modules could be loaded."""
    folder, name = os.path.split(PATH)
    return [int(name)] if folder == "/proc/self/fd" else []
