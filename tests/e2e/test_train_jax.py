"""The example DAG of JAX, from data to accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dev.setup import hosts_python
from tests.e2e.learnt import assert_one_good_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run

    Trigger = Callable[..., Run]


def test_all_processes_learn_the_same_model_and_it_is_good(trigger: Trigger) -> None:
    run = trigger("train_jax", python=str(hosts_python("jax")))
    run.wait_for_line("train", "jax 0.10.2")
    run.wait_for_line("train", "[rank 3 gpu2] process 3 of 4 on gpu2")
    run.wait_for_line("train", "[rank 0 gpu1] epoch 20: loss=")
    assert_one_good_model(run, epochs=20)
