"""What must hold after an example DAG has trained, whatever launched its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import ObjectStoragePath

if TYPE_CHECKING:
    from dev.rest import Run


def assert_one_good_model(run: Run, epochs: int) -> None:
    """Wait for the run; all four ranks on two hosts must have the same model, and it is good."""
    assert run.wait() == "success", run.story("train")
    trained = run.xcom("train")
    assert trained["hosts"] == ["gpu1", "gpu2"]
    assert trained["metrics"]["epoch"] == epochs
    assert len(trained["result"]["checksums"]) == trained["world_size"] == 4
    assert len(set(trained["result"]["checksums"])) == 1

    report = run.xcom("report")
    assert report["accuracy"] >= 0.9
    assert report["loss"] == trained["result"]["loss"]
    assert ObjectStoragePath(report["model"]).exists()
    assert any(ObjectStoragePath(report["logs"]).rglob("rank-3.log"))
