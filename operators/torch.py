"""Torch training: one process per rank, or one torchrun per node."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from distributed_training.operators.arguments import backend_name, choice, text
from distributed_training.operators.base import TrainingOperator

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow.sdk import Context

    from distributed_training.plan import JobSpec
    from distributed_training.snapshot import Snapshot

LAUNCHERS = ("process", "torchrun")


class TorchDistributedOperator(TrainingOperator):
    """Runs torch training on the hosts of a fleet, every rank with torchrun's environment.

    Parameters of every training operator: see :class:`TrainingOperator`.

    :param launcher: ``process`` starts each rank by itself; ``torchrun`` starts one torchrun per
        node, for scripts that use what only torchrun brings
    :param backend: of ``torch.distributed``, handed on as ``DT_BACKEND``; ``nccl`` refuses hosts
        without GPUs. By default nccl where there are GPUs, else gloo
    :param local_rank_argument: option by which an old script is told its local rank, as in
        ``--local_rank``; new scripts read ``LOCAL_RANK``
    """

    template_fields: Collection[str] = (
        *TrainingOperator.template_fields, "launcher", "backend", "local_rank_argument",
    )  # fmt: skip

    def __init__(
        self,
        *,
        launcher: Literal["process", "torchrun"] | str = "process",
        backend: str | None = None,
        local_rank_argument: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.launcher = launcher
        self.backend = backend
        self.local_rank_argument = local_rank_argument

    def spec(self, context: Context | Mapping[str, Any], source: Snapshot | None) -> JobSpec:
        """Return the validated specification of this try."""
        return dataclasses.replace(
            super().spec(context, source),
            launcher=choice("launcher", self.launcher, LAUNCHERS),
            backend=backend_name(self.backend),
            local_rank_argument=text("local_rank_argument", self.local_rank_argument),
        )
