"""The example DAG of Ray, from data to accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dev.setup import hosts_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run

    Trigger = Callable[..., Run]


def test_workers_of_a_cluster_learn_the_same_model_and_it_is_good(trigger: Trigger) -> None:
    run = trigger("train_ray", python=str(hosts_python("ray")))
    run.wait_for_line("train", "ranks 0 (driver), 1 (Ray head) on cpu-0, cpu-1")
    run.wait_for_line("train", "worker 3 of 4 on gpu")
    run.wait_for_line("train", "epoch 20: loss=")
    assert run.wait() == "success", run.story("train")
    trained = run.xcom("train")
    assert trained["hosts"] == ["gpu1", "gpu2"]
    assert trained["metrics"]["epoch"] == 20
    assert trained["result"]["world_size"] == 4
    assert len(set(trained["result"]["checksums"])) == 1
    assert run.xcom("report")["accuracy"] >= 0.9
