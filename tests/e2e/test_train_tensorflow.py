"""The example DAG of TensorFlow, from data to accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dev.setup import hosts_python
from tests.e2e.learnt import assert_one_good_model

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
    assert_one_good_model(run, epochs=20)
