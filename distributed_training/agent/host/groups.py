"""Whether a rank joined the others: what our `sitecustomize` noted while the rank ran."""

from __future__ import annotations

from .files import read_text

# They train in groups that others make. Accelerate leaves the group of torch aside on a CPU unless
# ACCELERATE_USE_CPU is set: then each rank trains by itself, although all of them have joined it.
USERS = ("accelerate",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node


def joined(node: Node, rank: int) -> dict[str, int]:
    """Return the size of the largest group that a rank was in, by the library that made it.

    A library that was imported, but made none, has 0.
    """
    sizes: dict[str, int] = {}
    for line in read_text(node.at("ranks", f"{rank}.groups")).splitlines():
        library, _, size = line.rpartition(" ")
        if library and size.isdigit():
            sizes[library] = max(int(size), sizes.get(library, 0))
    return sizes


def alone(sizes: dict[str, int], wanted: int | None) -> dict[str, int]:
    """Return what a rank trained in, if none of it is a group of the wanted size.

    :param wanted: None: any will do
    """
    used = {library: sizes[library] for library in USERS if sizes.get(library)} or sizes
    return used if wanted and max(used.values(), default=wanted) < wanted else {}
