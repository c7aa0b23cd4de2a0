"""The demo cleans up after one that was killed, and says what it keeps."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from dev import demo
from tests.fleet.record import Mark

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo's folder, as it is while Airflow runs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = demo.make_folder()
    (made / "airflow").mkdir()
    (made / "airflow/airflow.db").touch()
    return made


def disown(folder: Path) -> None:
    """Let the demo's process be gone, and its number another's."""
    owner = Mark(**json.loads((folder / demo.OWNER).read_text()))
    assert owner.started is not None
    gone = replace(owner, started=owner.started - 1)
    (folder / demo.OWNER).write_text(json.dumps(asdict(gone)))


def test_the_folder_of_a_killed_demo_is_removed(folder: Path) -> None:
    disown(folder)
    demo.forget_killed()
    assert not folder.exists()


def test_what_the_training_brought_back_is_kept(folder: Path) -> None:
    disown(folder)
    (folder / "model.npz").touch()
    demo.forget_killed()
    assert [entry.name for entry in folder.iterdir()] == ["model.npz"]


def test_the_folder_of_a_demo_that_runs_is_left_alone(folder: Path) -> None:
    demo.forget_killed()
    assert (folder / "airflow/airflow.db").exists()
