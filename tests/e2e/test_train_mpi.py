"""The example DAG of MPI, from data to accuracy, watched by a worker and then by a triggerer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dev.setup import hosts_python
from tests.e2e.learnt import assert_one_good_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.rest import Run

    Trigger = Callable[..., Run]


def test_ranks_of_an_mpirun_learn_the_same_model_and_it_is_good(trigger: Trigger) -> None:
    run = trigger("train_mpi", mpi="openmpi", python=str(hosts_python("mpi-openmpi")))
    run.wait_for_line("train", "mpi4py 4.1")
    run.wait_for_line("train", "[rank 3 gpu2] rank 3 of 4: 32 digits a step of 1437, on gpu2")
    run.wait_for_line("train", "[rank 3 gpu2] rank 3: the averaged gradient is that of the whole")
    run.wait_for_line("train", "[rank 0 gpu1] epoch 40: loss=")
    assert_one_good_model(run, epochs=40)
