"""Ranks that serve others, and how long they go on when those have done their work."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Serving:
    """The ranks of a node that do not end by themselves, or only after all others.

    :param seconds: that each of them may go on once the others are done, by its number; at 0 it is
        ended at once, and how it ends does not matter any more
    """

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self._seconds = {int(rank): float(each) for rank, each in (seconds or {}).items()}
        self._since: float | None = None

    def release(self) -> bool:
        """Note that all others are done, and tell whether that is news."""
        news = self._since is None
        if news:
            self._since = time.monotonic()
        return news

    def may_fall(self, rank: int | None) -> bool:
        """Tell whether a rank may end in any way: nobody needs it any more."""
        return self._since is not None and self._seconds.get(-1 if rank is None else rank) == 0

    def is_over(self, left: set[int]) -> bool:
        """Tell whether nobody has to be waited for of these ranks, which have not ended yet."""
        if self._since is None or not left <= self._seconds.keys():
            return False
        return time.monotonic() >= self._since + max(self._seconds[rank] for rank in left)
