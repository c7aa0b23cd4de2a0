"""Training with Ray: a cluster of the job's own, and one driver."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from distributed_training.errors import PlanError
from distributed_training.operators.arguments import whole_number
from distributed_training.operators.base import TrainingOperator
from distributed_training.plan import RayOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow.sdk import Context

    from distributed_training.plan import JobSpec
    from distributed_training.snapshot import Snapshot

LEAST_MEMORY = 75 << 20  # bytes


class RayTrainOperator(TrainingOperator):
    """Runs a driver in a Ray cluster that is started on the hosts of a fleet for it alone.

    Parameters of every training operator: see :class:`TrainingOperator`. Here the program is the
    driver, which runs once, on the head; ``nproc_per_node`` is the number of slots that Ray has on
    each host, and ``master_port`` the port of Ray's head.

    :param num_cpus: CPUs that Ray counts on each host (its slots there, or beside GPUs all CPUs)
    :param object_store_memory: bytes of each host's memory for objects (30 % of it)
    """

    template_fields: Collection[str] = (
        *TrainingOperator.template_fields, "num_cpus", "object_store_memory",
    )  # fmt: skip
    launcher = "ray"

    def __init__(
        self,
        *,
        num_cpus: int | str | None = None,
        object_store_memory: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_cpus = num_cpus
        self.object_store_memory = object_store_memory

    def spec(self, context: Context | Mapping[str, Any], source: Snapshot | None) -> JobSpec:
        """Return the validated specification of this try."""
        memory = whole_number("object_store_memory", self.object_store_memory)
        if memory is not None and memory < LEAST_MEMORY:
            raise PlanError(
                f"object_store_memory={memory} is less than Ray takes: {LEAST_MEMORY} bytes"
            )
        options = RayOptions(whole_number("num_cpus", self.num_cpus), memory)
        return dataclasses.replace(super().spec(context, source), ray=options)
