"""What triggers have logged outlives them, although Airflow empties their files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.configuration import conf

from distributed_training.triggers import tasklog

if TYPE_CHECKING:
    from pathlib import Path

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
    start = datetime(2030, 1, 1, tzinfo=UTC)
    records = [
        {"timestamp": (start + timedelta(seconds=at)).isoformat(), "event": line}
        for at, line in lines
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_file_that_airflow_would_empty_is_kept_where_the_page_shows_it(folder: Path) -> None:
    own = folder / "attempt=2.log.trigger.7.log"
    for text in ("first", "second"):
        own.write_text(text)
        kept = tasklog.keep(TASK)
        assert not own.exists()
    assert [path.read_text() for path in kept] == ["first", "second"]
    assert {path.name.startswith("attempt=2.log") for path in kept} == {True}


def test_another_try_is_left_alone(folder: Path) -> None:
    other = folder / "attempt=1.log.trigger.7.log"
    other.write_text("x")
    assert tasklog.keep(TASK) == []
    assert other.exists()


def test_a_task_without_any_log_has_nothing_to_keep() -> None:
    stranger: Any = SimpleNamespace(**{**vars(TASK), "dag_id": "never"})
    assert tasklog.keep(stranger) == []


def test_the_last_lines_of_each_host_are_found(folder: Path) -> None:
    first, second = folder / "a", folder / "b"
    logged(first, (0, "[rank 0 gpu1] old"), (50, "[rank 0 gpu1] x"), (51, "no line of a host"))
    logged(second, (52, "[rank 0 gpu1] x"), (1, "[gpu2] note"), (2, "[launcher gpu2] y"))
    assert tasklog.last_lines([first, second]) == {
        "[rank 0 gpu1] x": 2,
        "[gpu2] note": 1,
        "[launcher gpu2] y": 1,
    }


def test_lines_that_are_no_records_are_passed_over(folder: Path) -> None:
    path = folder / "a"
    logged(path, (1, "[gpu2] note"))
    path.write_text('half of a line"}\n{"event": "[gpu2] no time"}\n[]\n' + path.read_text())
    assert tasklog.last_lines([path]) == {"[gpu2] note": 1}
