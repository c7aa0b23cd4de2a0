"""Training under an MPI: one mpirun, which starts the ranks of all hosts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from distributed_training.mpirun import FAMILIES, MpiOptions
from distributed_training.operators.arguments import argument_list, choice, switch, text
from distributed_training.operators.base import TrainingOperator

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow.sdk import Context

    from distributed_training.plan import JobSpec
    from distributed_training.snapshot import Snapshot


class MpiTrainOperator(TrainingOperator):
    """Runs a program under the hosts' own ``mpirun``, without SSH or keys between the hosts.

    Parameters of every training operator: see :class:`TrainingOperator`.

    :param mpi: which MPI it has to be; ``auto`` takes the one that the hosts have
    :param mpirun: path or name of ``mpirun`` on the hosts (the one beside ``python``, else that of
        the ``PATH``)
    :param mpirun_arguments: further arguments for it, a list or a text
    :param allow_run_as_root: let it run where the hosts' user is root
    """

    template_fields: Collection[str] = (
        *TrainingOperator.template_fields, "mpi", "mpirun", "mpirun_arguments", "allow_run_as_root",
    )  # fmt: skip
    launcher = "mpi"

    def __init__(
        self,
        *,
        mpi: Literal["auto", "openmpi", "mpich", "intelmpi"] | str = "auto",
        mpirun: str | None = None,
        mpirun_arguments: Sequence[Any] | str | None = (),
        allow_run_as_root: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mpi = mpi
        self.mpirun = mpirun
        self.mpirun_arguments = mpirun_arguments
        self.allow_run_as_root = allow_run_as_root

    def spec(self, context: Context | Mapping[str, Any], source: Snapshot | None) -> JobSpec:
        """Return the validated specification of this try."""
        wanted = choice("mpi", self.mpi, ("auto", *FAMILIES))
        options = MpiOptions(
            family=next((family for family in FAMILIES if family == wanted), None),
            program=text("mpirun", self.mpirun),
            arguments=tuple(argument_list(self.mpirun_arguments, "mpirun_arguments")),
            allow_run_as_root=switch("allow_run_as_root", self.allow_run_as_root),
        )
        return dataclasses.replace(super().spec(context, source), mpi=options)
