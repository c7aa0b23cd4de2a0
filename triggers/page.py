"""Where the web page finds a job: an XCom of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetXCom, XComResult

from distributed_training.run.page import Page
from distributed_training.run.picture import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping


class WorkerPage(Page):
    """The XCom of a task instance that runs in this worker; with another try it begins anew."""

    def __init__(self, ti: Any) -> None:
        self._ti = ti

    async def before(self) -> None:
        """Return nothing: a worker is the first to show a job."""

    async def show(self, record: Mapping[str, Any]) -> None:
        """Show a picture in place of the last one."""
        self._ti.xcom_push(KEY, dict(record))


class TriggerPage(Page):
    """The XCom of a task instance that waits for a trigger."""

    def __init__(self, ti: Any) -> None:
        self._place = {
            "dag_id": ti.dag_id,
            "run_id": ti.run_id,
            "task_id": ti.task_id,
            "map_index": -1 if ti.map_index is None else ti.map_index,
        }

    async def before(self) -> Mapping[str, Any] | None:
        """Return the last picture that was shown there, if there is one."""
        asked = GetXCom(key=KEY, **self._place)
        answer = await task_runner.SUPERVISOR_COMMS.asend(asked)
        if not isinstance(answer, XComResult) or answer.value is None:
            return None
        value = BaseXCom.deserialize_value(answer)
        return value if isinstance(value, dict) else None

    async def show(self, record: Mapping[str, Any]) -> None:
        """Show a picture in place of the last one."""
        await BaseXCom.aset(KEY, dict(record), **self._place)
