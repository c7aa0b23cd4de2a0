"""What a task under an MPI asks for."""

from __future__ import annotations

from typing import Any

import pytest

from distributed_training.errors import PlanError
from distributed_training.mpirun import MpiOptions
from distributed_training.operators.arguments import fill_in
from distributed_training.operators.mpi import MpiTrainOperator

OWN = ("mpi", "mpirun", "mpirun_arguments", "allow_run_as_root")


def asked(**fields: Any) -> MpiOptions | None:
    """Return what a task asks of mpirun whose templates have been rendered."""
    task = MpiTrainOperator(task_id="t", script="a.py", hosts=["gpu1"], **fields)
    fill_in(task, task.template_fields)
    with task.source() as source:
        spec = task.spec({}, source)
    assert spec.launcher == "mpi"
    return spec.mpi


@pytest.mark.parametrize("blank", ["", " ", "None", None])
@pytest.mark.parametrize("name", OWN)
def test_what_a_template_left_blank_is_not_given(name: str, blank: str | None) -> None:
    assert asked(**{name: blank}) == asked() == MpiOptions()


def test_what_is_asked_may_have_come_through_templates() -> None:
    assert asked(
        mpi="openmpi",
        mpirun="/opt/mpi/bin/mpirun",
        mpirun_arguments="--mca btl '^openib' --report-bindings",
        allow_run_as_root="True",
    ) == MpiOptions(
        family="openmpi",
        program="/opt/mpi/bin/mpirun",
        arguments=("--mca", "btl", "^openib", "--report-bindings"),
        allow_run_as_root=True,
    )


def test_an_mpi_that_nobody_knows_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(PlanError, match="mpi='lam' is none of auto, openmpi, mpich, intelmpi"):
        asked(mpi="lam")
