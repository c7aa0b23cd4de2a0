"""What a task remembers of its job, over tries and clears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time.context import NEVER_EXPIRE

from distributed_training.run.job import JobRef
from distributed_training.run.queue import Waiting

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor

_JOB = "job"
_WAITING = "waiting"
_TRIGGER_FAILURES = "trigger_failures"


class JobMemory:
    """The task's state store of Airflow, which XCom is not: that is emptied for each try."""

    def __init__(self, store: TaskStateStoreAccessor) -> None:
        self._store = store

    def last(self) -> JobRef | None:
        """Return the job that was started last, if there was one."""
        record: Any = self._store.get(_JOB)
        return JobRef.from_dict(record) if record else None

    def remember(self, ref: JobRef) -> None:
        """Record a job, before anything of it is started."""
        self._store.set(_JOB, ref.to_dict(), retention=NEVER_EXPIRE)
        self._store.delete(_WAITING)
        self._store.delete(_TRIGGER_FAILURES)

    def waits(self, waiting: Waiting) -> None:
        """Record that the job was refused, and waits for slots."""
        self._store.set(_WAITING, waiting.to_dict(), retention=NEVER_EXPIRE)

    def waiting(self) -> Waiting | None:
        """Return what the job waits for, if it does."""
        record: Any = self._store.get(_WAITING)
        return Waiting.from_dict(record) if record else None

    def another_trigger_failure(self) -> int:
        """Count a trigger of this job that failed; return how many have."""
        seen: Any = self._store.get(_TRIGGER_FAILURES, 0)
        self._store.set(_TRIGGER_FAILURES, int(seen) + 1)
        return int(seen) + 1
