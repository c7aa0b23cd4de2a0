"""The example DAG, started and watched as a user does through the web page's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import ObjectStoragePath

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run

    Trigger = Callable[..., Run]


def test_all_ranks_learn_the_same_while_their_lines_come_live(trigger: Trigger) -> None:
    run = trigger("train_digits", epochs=300)
    run.wait_for_task("train", "deferred")
    run.wait_for_line("train", "gpu1: ok, Python 3.")
    run.wait_for_line("train", "[rank 0 gpu1] epoch 200: loss=")
    assert run.tasks()["train"] == "deferred"
    run.wait_for_line("train", "[rank 3 gpu2] rank 3 of 4: 360 digits")

    assert run.wait() == "success", run.story("train")
    trained = run.xcom("train")
    assert trained["hosts"] == ["gpu1", "gpu2"]
    assert trained["world_size"] == 4
    assert len(trained["result"]["loss"]) == 300
    assert len(set(trained["result"]["checksums"])) == 1
    assert_reported(run, trained)


def test_parameters_of_the_form_reach_the_script(trigger: Trigger) -> None:
    run = trigger("train_digits", epochs=6, lr=0.05, nnodes=1, hosts="gpu2", nproc_per_node=1)
    assert run.wait() == "success", run.story("train")
    trained = run.xcom("train")
    assert trained["hosts"] == ["gpu2"]
    assert trained["world_size"] == 1
    assert trained["metrics"]["epoch"] == 6
    assert_reported(run, trained)


def assert_reported(run: Run, trained: dict[str, Any]) -> None:
    report = run.xcom("report")
    assert report["accuracy"] >= 0.9
    assert report["loss"] == trained["result"]["loss"]
    assert ObjectStoragePath(report["model"]).exists()
    assert any(ObjectStoragePath(report["logs"]).rglob("rank-0.log"))
