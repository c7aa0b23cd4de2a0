"""What triggers have logged outlives them, although Airflow empties their files."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.configuration import conf

from distributed_training.triggers import tasklog
from distributed_training.triggers.tasklog import TaskLog

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2030, 1, 1, tzinfo=UTC)
TASK: Any = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the task's logs."""
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path))
    assert conf.get("logging", "base_log_folder") == str(tmp_path)
    path = tmp_path / "dag_id=d/run_id=r/task_id=t"
    path.mkdir(parents=True)
    return path


def logged(path: Path, *lines: tuple[float, str]) -> None:
    records = [
        {"timestamp": (START + timedelta(seconds=at)).isoformat(), "event": line}
        for at, line in lines
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_file_that_airflow_would_empty_is_kept_where_the_page_shows_it(folder: Path) -> None:
    own = folder / "attempt=2.log.trigger.7.log"
    for text in ("first", "second"):
        own.write_text(text)
        TaskLog.of_trigger(TASK)
        assert not own.exists()
    assert [path.read_text() for path in sorted(folder.glob("attempt=2.log*"))] == [
        "first",
        "second",
    ]


def test_what_a_frozen_triggerer_writes_when_it_comes_back_is_not_shown(folder: Path) -> None:
    path = folder / "attempt=2.log.trigger.7.log"
    with path.open("w") as frozen:
        frozen.write("in time\n")
        frozen.flush()
        TaskLog.of_trigger(TASK)
        frozen.write("late\n")
    (kept,) = folder.iterdir()
    assert kept.read_text() == "in time\n"


def test_another_try_is_left_alone(folder: Path) -> None:
    other = folder / "attempt=1.log.trigger.7.log"
    other.write_text("x")
    TaskLog.of_trigger(TASK)
    assert other.exists()


def test_a_task_without_any_log_has_nothing_to_keep() -> None:
    stranger: Any = SimpleNamespace(**{**vars(TASK), "dag_id": "never"})
    assert not TaskLog.of_worker(stranger).logged("gpu1", 0)


def test_the_lines_of_a_host_are_found_in_all_files_of_the_try(folder: Path) -> None:
    log = folder / "attempt=2.log"
    logged(log, (0, "[rank 0 gpu1] old"), (50, "[rank 0 gpu1] x"), (51, "no line of a host"))
    logged(
        folder / "attempt=2.log.trigger.7.log",
        (52, "[rank 0 gpu1] x"), (53, "[gpu2] note"), (54, "[launcher gpu1] y"),
    )  # fmt: skip
    logged(folder / "attempt=1.log", (55, "[rank 0 gpu1] z"))
    assert TaskLog.of_worker(TASK).logged("gpu1", START.timestamp() + 50) == {
        "[rank 0 gpu1] x": 2,
        "[launcher gpu1] y": 1,
    }


def test_lines_that_are_no_records_are_passed_over(folder: Path) -> None:
    path = folder / "attempt=2.log"
    logged(path, (1, "[gpu2] note"))
    path.write_text('half of a line"}\n{"event": "[gpu2] no time"}\n[]\n' + path.read_text())
    assert TaskLog.of_worker(TASK).logged("gpu2", 0) == {"[gpu2] note": 1}


def test_an_event_waits_for_the_last_line_and_for_no_other(folder: Path) -> None:
    own = folder / "attempt=2.log.trigger.7.log"

    async def story() -> None:
        waits = asyncio.ensure_future(TaskLog.of_trigger(TASK).reached("over"))
        for line in ("[rank 0 gpu1] over", "over"):
            await asyncio.sleep(0.5)
            assert not waits.done()
            logged(own, (0, line))
        await asyncio.wait_for(waits, 10)

    asyncio.run(story())


def test_an_event_does_not_wait_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasklog, "LATE", 0.5)
    asyncio.run(asyncio.wait_for(TaskLog.of_trigger(TASK).reached("over"), 10))


def test_what_is_written_is_told_by_the_last_line_of_the_own_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasklog, "LOOK_EVERY", 0.0)
    own = folder / "attempt=2.log.trigger.7.log"
    logged(own, (9, "of an earlier trigger"))
    log = TaskLog.of_trigger(TASK)
    logged(folder / "attempt=2.log", (8, "of the worker"))
    assert log.written() < time.time()  # nothing is known yet
    logged(own, (1, "first"), (2, "second"))
    assert log.written() == START.timestamp() + 2
    own.rename(own.with_name("another trigger has taken over"))
    assert log.written() == START.timestamp() + 2


def test_a_worker_has_a_file_of_its_own(folder: Path) -> None:
    logged(folder / "attempt=2.log", (1, "x"))
    logged(folder / "attempt=2.log.trigger.7.log", (5, "y"))
    assert TaskLog.of_worker(TASK).written() == START.timestamp() + 1
