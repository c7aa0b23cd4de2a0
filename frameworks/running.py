"""One row, run on hosts as Airflow would run its tasks: begun, deferred, resumed."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from textwrap import shorten
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import TaskDeferred
from structlog.testing import capture_logs

from dev.environments import CHECKOUT
from distributed_training.errors import TrainingError
from frameworks.row import WrongValue, prepared
from tests.integration.tasks import Store, event_of, push, stored

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence
    from pathlib import Path

    from frameworks.row import Row

LIMIT = timedelta(minutes=20)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a row.

    :param told: the value that was learned, or why there is none
    :param where: hosts x ranks on each
    :param took: seconds, from the task's begin to its end
    """

    state: Literal["ok", "failed", "refused"]
    told: str
    where: str
    took: float


def run(row: Row, python: Path, log: Path) -> Outcome:
    """Run a row to its end, and write its task's log.

    :param python: of the row's environment, on the hosts
    """
    began = time.monotonic()
    where = "-"
    state: Literal["ok", "failed", "refused"] = "failed"
    with capture_logs() as events:
        try:
            _before(row, python)
            result = _after(row, python, _play(row, python))
            where = f"{len(result['hosts'])} x {result['world_size'] // len(result['hosts'])}"
            state, told = _judged(row, result)
        except WrongValue as error:
            told = str(error)
        except TrainingError as error:
            events.append({"event": str(error)})
            state = "refused" if row.refusal is type(error) else "failed"
            told = f"{type(error).__name__}: {shorten(error.message, 120)}"
    log.write_text(_text(events))
    return Outcome(state, told, where, time.monotonic() - began)


def _judged(row: Row, result: dict[str, Any]) -> tuple[Literal["ok", "failed"], str]:
    if row.refusal:
        return "failed", f"it ended well, and should have been refused: {row.refusal.__name__}"
    if result["result"] is None:
        raise WrongValue("rank 0 has left no result")
    return "ok", row.check(result)


def _before(row: Row, python: Path) -> None:
    """Make what the training reads, as an earlier task would, in a copy of the script's folder."""
    if row.before is None:
        return
    script = CHECKOUT / row.before
    folder = prepared(row.before)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(script.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    _program([str(python), script.name], folder)


def _after(row: Row, python: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Return the task's result with what a later task reads of its outputs."""
    if row.after is None:
        return result
    told = _program([str(python), row.after, *result["outputs"].values()], CHECKOUT)
    return result | {"result": json.loads(told)}


def _program(command: list[str], folder: Path) -> str:
    """Return what a program prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WrongValue(f"{' '.join(command)} failed: {shorten(done.stderr[-400:], 300)}")
    return done.stdout


def _play(row: Row, python: Path) -> dict[str, Any]:
    """Return what the task returns: we are its scheduler, worker and triggerer."""
    context = _context(row)
    method = "execute"
    arguments: dict[str, Any] = {}
    while True:
        task = row.operator(
            task_id="train", python=str(python), grace_period=3, execution_timeout=LIMIT
        )
        try:
            result: dict[str, Any] = getattr(task, method)(context, **arguments)
        except TaskDeferred as deferred:
            event = asyncio.run(event_of(stored(deferred.trigger)))
            method, arguments = deferred.method_name, {"event": event}
        else:
            return result


def _context(row: Row) -> Any:
    ti = SimpleNamespace(
        dag_id=row.family, task_id="train", run_id=secrets.token_hex(4), map_index=-1, id="0",
        try_number=1, max_tries=0, start_date=datetime.now(UTC), xcom_push=push,
    )  # fmt: skip
    return {"ti": ti, "task_state_store": Store()}


def _text(events: Sequence[MutableMapping[str, Any]]) -> str:
    lines = []
    for event in events:
        words = event.get("positional_args", ())
        lines.append(event["event"] % words if words else str(event["event"]))
    return "\n".join(lines) + "\n"
