"""Why a program cannot be executed."""

from __future__ import annotations

import errno
import os

from .errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def exec_failed(name: str, argv: Sequence[str], env: dict[str, str], error: Exception) -> Refusal:
    """Return the refusal for a program that cannot be executed."""
    do = "give its path on this host, executable and on a file system that allows programs"
    why, do = too_large(argv, env, error) or (getattr(error, "strerror", None) or str(error), do)
    message = f"{name}: cannot execute {argv[0] if argv else '(nothing)'}: {why}; {do}"
    return Refusal("exec_failed", message, name=name)


def too_large(argv: Sequence[str], env: dict[str, str], error: Exception) -> tuple[str, str] | None:
    """Return what is larger than execve(2) allows, if that is the error, and what to do."""
    if getattr(error, "errno", None) != errno.E2BIG:
        return None
    sizes = {f"argument {n}": len(os.fsencode(word)) for n, word in enumerate(argv)}
    sizes.update((f"variable {name}", len(os.fsencode(text))) for name, text in env.items())
    largest = max(sizes, key=sizes.__getitem__)
    one, all_of_it = 32 * os.sysconf("SC_PAGE_SIZE") >> 10, os.sysconf("SC_ARG_MAX") >> 10
    why = (
        f"arguments and variables have {sum(sizes.values()) >> 10} KiB, {largest} alone has "
        f"{sizes[largest] >> 10}; Linux allows {all_of_it} KiB, and {one} for each"
    )
    return why, "put what is large into a file in source_dir"
