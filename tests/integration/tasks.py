"""Tasks without Airflow's processes: a test plays scheduler, worker and triggerer."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.serde import deserialize, serialize

from distributed_training.operators.arguments import job_id
from distributed_training.operators.torch import TorchDistributedOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.triggers.base import BaseTrigger

    from distributed_training.operators.base import TrainingOperator

COMMAND = """began=$(date +%s.%N); sleep 1
[ "$RANK" = 0 ] || exit 0
echo "{\\"began\\": $began, \\"ended\\": $(date +%s.%N)}" > "$DT_RESULT_FILE"
"""


class Store(dict[str, Any]):
    """A task's state store."""

    def set(self, key: str, value: Any, retention: object = None) -> None:
        """Keep a value."""
        self[key] = value

    def delete(self, key: str) -> None:
        """Forget a value."""
        self.pop(key, None)


def push(_: str, value: Any) -> None:
    """Take an XCom as Airflow does: JSON, and nothing else."""
    json.dumps(serialize(value), allow_nan=False)


class Task:
    """One task that runs a command on its slots, and all that was seen of it.

    :param kind: of operator, or what makes one
    :param fields: of the operator
    """

    def __init__(
        self,
        command: str | None = COMMAND,
        kind: Callable[..., TrainingOperator] = TorchDistributedOperator,
        **fields: Any,
    ) -> None:
        self.kind = kind
        self.fields = {"task_id": "t", "command": command, "grace_period": 3, **fields}
        ti = SimpleNamespace(
            dag_id="d", task_id="t", run_id=secrets.token_hex(4), map_index=-1, id="0",
            try_number=1,
            max_tries=0, start_date=None, xcom_push=push,
        )  # fmt: skip
        self.context: Any = {"ti": ti, "task_state_store": Store()}
        self.operator = kind(**self.fields)
        self.deferrals: list[str] = []
        self.error: BaseException | None = None
        self.result: Any = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def job_id(self) -> str:
        """Its job."""
        return job_id(self.context)

    def start(self) -> Task:
        """Run it in a thread."""
        self._thread.start()
        return self

    def wait(self) -> Any:
        """Return what it returns."""
        self._thread.join()
        if self.error:
            raise self.error
        return self.result

    def run(self) -> Any:
        """Run it to its end."""
        return self.start().wait()

    def deferred(self) -> TaskDeferred:
        """Run it until it defers, and no further."""
        try:
            self.operator.execute(self.context)
        except TaskDeferred as deferred:
            return deferred
        raise AssertionError("the task did not defer")

    def _run(self) -> None:
        try:
            self.result = self._live()
        except BaseException as error:
            self.error = error

    def _live(self) -> Any:
        method, arguments = "execute", {}
        while True:
            try:
                result = getattr(self.operator, method)(self.context, **arguments)
            except TaskDeferred as deferred:
                self.deferrals.append(deferred.method_name)
                event = asyncio.run(event_of(stored(deferred.trigger)))
                method, arguments = deferred.method_name, {"event": event}
                self.operator = self.kind(**self.fields)
            else:
                return result


def stored(trigger: BaseTrigger) -> BaseTrigger:
    """Return a trigger as the triggerer makes it: from what was stored."""
    _, fields = trigger.serialize()
    kept: Any = deserialize(json.loads(json.dumps(serialize(fields))))
    return type(trigger)(**kept)


async def event_of(trigger: BaseTrigger) -> dict[str, Any]:
    """Return a trigger's only event."""
    (event,) = [event async for event in trigger.run()]
    payload: dict[str, Any] = json.loads(json.dumps(event.payload))
    return payload


def one_after_the_other(*tasks: Task) -> bool:
    """Tell whether no two of these ran at a time, in this order."""
    spans = [(task.result["result"]["began"], task.result["result"]["ended"]) for task in tasks]
    return all(one[1] <= next_[0] for one, next_ in pairwise(spans))
