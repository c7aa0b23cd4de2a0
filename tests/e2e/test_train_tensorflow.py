"""The example DAG of TensorFlow, from data to accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import ObjectStoragePath

from dev.setup import hosts_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run

    Trigger = Callable[..., Run]


def test_workers_of_a_cluster_learn_the_same_model_and_it_is_good(trigger: Trigger) -> None:
    run = trigger(
        "train_tensorflow", placement="round_robin", python=str(hosts_python("tensorflow"))
    )
    run.wait_for_line("train", "ranks 0 (worker 0), 2 (worker 2) on cpu-0, cpu-1")
    run.wait_for_line("train", "tensorflow-cpu 2.21.0")
    run.wait_for_line("train", "[rank 3 gpu2] 1 of 4 replicas, 1437 digits, on gpu2")
    run.wait_for_line("train", "[rank 0 gpu1] epoch 20: loss=")

    assert run.wait() == "success", run.story("train")
    trained = run.xcom("train")
    assert trained["hosts"] == ["gpu1", "gpu2"]
    assert trained["metrics"]["epoch"] == 20
    assert len(trained["result"]["checksums"]) == trained["world_size"] == 4
    assert len(set(trained["result"]["checksums"])) == 1

    report = run.xcom("report")
    assert report["accuracy"] >= 0.9
    assert report["loss"] == trained["result"]["loss"]
    assert ObjectStoragePath(report["model"]).exists()
    assert any(ObjectStoragePath(report["logs"]).rglob("rank-3.log"))
