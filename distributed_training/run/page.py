"""Where a job is shown while it is watched, and how often."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributed_training.run.picture import Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from distributed_training.errors import TrainingError
    from distributed_training.run.job import JobRef
    from distributed_training.run.verdict import NodeState

_EVERY = 5.0  # seconds between two pictures
_REST = 100.0  # times as long as it takes to show one


class Page(ABC):
    """Where pictures of a job are shown."""

    @abstractmethod
    async def before(self) -> Mapping[str, Any] | None:
        """Return the last picture that was shown there, if there is one."""

    @abstractmethod
    async def show(self, record: Mapping[str, Any]) -> None:
        """Show a picture in place of the last one."""


class Painter:
    """Shows a job on its page. Whatever ails the page, it is not the job's affair.

    :param page: None: the job is shown nowhere
    :param log: told once if the page fails, which is then left alone
    """

    def __init__(self, ref: JobRef, page: Page | None, log: Callable[[str], None]) -> None:
        self.picture = Picture(ref)
        self._page = page
        self._log = log

    async def look_back(self) -> None:
        """Take over the curves that an earlier watcher has shown."""
        with self._at_most_the_page_fails():
            if self._page and (before := await self._page.before()):
                self.picture.go_on(before)

    async def paint(self, states: Collection[NodeState]) -> None:
        """Show the job as it is now and then, more rarely where Airflow is slow to take it."""
        while self._page:
            begun = time.monotonic()
            await self._show(self.picture.record(list(states)))
            await asyncio.sleep(max(_EVERY, _REST * (time.monotonic() - begun)))

    async def finish(self, states: Collection[NodeState], error: TrainingError | None) -> None:
        """Show how the job has ended."""
        await self._show(self.picture.last(list(states), error))

    async def _show(self, record: Mapping[str, Any]) -> None:
        with self._at_most_the_page_fails():
            if self._page:
                await self._page.show(record)

    @contextmanager
    def _at_most_the_page_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._page = None
            self._log(f"The job is not shown on its page any more: {type(error).__name__}: {error}")
