"""What a task remembers of its job, over tries and clears."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.execution_time.context import NEVER_EXPIRE

from distributed_training.run.job import JobRef
from distributed_training.run.queue import Waiting

if TYPE_CHECKING:
    from airflow.sdk import Context

Phase = Literal["launching", "watching", "deferred", "delivered"]

_JOB = "job"
_WAITING = "waiting"
_TRIGGER_FAILURES = "trigger_failures"


class JobMemory:
    """The task's state store of Airflow, which XCom is not: that is emptied for each try."""

    def __init__(self, context: Context) -> None:
        self._store = context["task_state_store"]
        # A clear lets a task have more tries than before; a retry does not.
        self._max_tries = context["ti"].max_tries
        self._try = context["ti"].try_number

    def last(self) -> JobRef | None:
        """Return the job that was started last, if there was one."""
        record = self._record()
        return JobRef.from_dict(record["ref"]) if record else None

    def is_retry(self) -> bool:
        """Return whether the task's last job is to be gone on with, and not to be done anew."""
        record = self._record()
        if not record or record["phase"] == "delivered" or record["max_tries"] != self._max_tries:
            return False
        return bool(record["resumes"] or record["try"] < self._try)

    def remember(self, ref: JobRef) -> None:
        """Record a job, before anything of it is started."""
        self._write(
            {
                "ref": ref.to_dict(),
                "try": self._try,
                "resumes": self.is_retry(),  # as long as it is not cleared
                "max_tries": self._max_tries,
                "phase": "launching",
            }
        )
        self._store.delete(_WAITING)
        self._store.delete(_TRIGGER_FAILURES)

    def enter(self, phase: Phase) -> None:
        """Record how far the worker has come with the job; later phases live on the hosts.

        No later try may take a result for its own that was handed on (``delivered``).
        """
        self._write(self._record() | {"phase": phase})

    def has_lapsed(self, ref: JobRef) -> bool:
        """Return whether an unreachable host's agent must have ended the job there by now.

        Its lease may have been renewed until just before the first try to end it failed.
        """
        record = self._record()
        if "unconfirmed" not in record:
            self._write(record | {"unconfirmed": time.time()})
        return ref.orphan_timeout is not None and time.time() > self._lapses_at(ref)

    def lapse(self, ref: JobRef) -> str:
        """Return in words what will end a job on a host that cannot be reached."""
        if ref.orphan_timeout is None:
            return "with orphan_timeout=None nothing ends it there by itself; bring the host back"
        at = time.strftime("%H:%M:%S UTC", time.gmtime(self._lapses_at(ref)))
        return f"its agent ends it by {at} (orphan_timeout); a later try takes it for gone then"

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

    def _lapses_at(self, ref: JobRef) -> float:
        """Return that time.time(), with room for the grace period."""
        return float(self._record()["unconfirmed"] + (ref.orphan_timeout or 0) + ref.grace_period)

    def _record(self) -> dict[str, Any]:
        record: Any = self._store.get(_JOB)
        return record or {}

    def _write(self, record: dict[str, Any]) -> None:
        self._store.set(_JOB, record, retention=NEVER_EXPIRE)
