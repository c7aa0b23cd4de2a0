"""A cgroup with a memory limit, made and removed by the test that needs it."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/sys/fs/cgroup")
VERSION_1 = ROOT / "memory"


@contextmanager
def memory_limit(mebibytes: int) -> Iterator[Path]:
    """Yield the folder of a cgroup that may use so much memory, and no swap."""
    first = VERSION_1.is_dir()
    folder = (VERSION_1 if first else ROOT) / f"training-test-{secrets.token_hex(4)}"
    folder.mkdir()
    size = str(mebibytes << 20)
    (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(size)
    with suppress(OSError):  # not every kernel counts swap
        name, value = ("memory.memsw.limit_in_bytes", size) if first else ("memory.swap.max", "0")
        (folder / name).write_text(value)
    try:
        yield folder
    finally:
        _remove(folder)


def entering(folder: Path) -> tuple[str, ...]:
    """Return what to put before a command so that it runs in a cgroup."""
    return ("sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh")


def _remove(folder: Path) -> None:
    """Remove a cgroup as soon as what was in it has ended."""
    until = time.monotonic() + 30
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
