"""TensorFlow training: workers, and where wanted a chief, parameter servers and evaluators."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from distributed_training.cluster import PLACEMENTS, Cluster
from distributed_training.errors import PlanError
from distributed_training.operators.arguments import choice, count, seconds, switch, whole_number
from distributed_training.operators.base import TrainingOperator

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow.sdk import Context

    from distributed_training.plan import JobSpec
    from distributed_training.snapshot import Snapshot


class TFMultiWorkerOperator(TrainingOperator):
    """Runs a TensorFlow cluster on the hosts of a fleet, every task with its ``TF_CONFIG``.

    Parameters of every training operator: see :class:`TrainingOperator`. Here ``nnodes`` is the
    most hosts that are used, and ``nproc_per_node`` has no meaning: the counts say how many ranks
    there are.

    :param worker_count: number of workers
    :param parameter_server_count: number of parameter servers; they take no slots, see no GPU, and
        are ended when the others are done
    :param chief: have a task ``chief`` beside the workers, as the coordinator of parameter servers;
        without, TensorFlow takes worker 0 for the chief
    :param evaluator_count: number of evaluators, which are no part of the cluster
    :param placement: ``slots`` fills one host after another; ``round_robin`` deals the tasks to all
        hosts in turn
    :param slots_per_worker: slots, of one host, of each chief, worker and evaluator
    :param evaluator_timeout: seconds that evaluators may go on when all others are done
    :param bypass_proxies: add the hosts of the cluster to ``no_proxy``, since gRPC would take a
        proxy of the environment even to the same host
    """

    template_fields: Collection[str] = (
        *TrainingOperator.template_fields, "worker_count", "parameter_server_count", "chief",
        "evaluator_count", "placement", "slots_per_worker", "evaluator_timeout", "bypass_proxies",
    )  # fmt: skip
    launcher = "tensorflow"

    def __init__(
        self,
        *,
        worker_count: int | str,
        parameter_server_count: int | str = 0,
        chief: bool | str = False,
        evaluator_count: int | str = 0,
        placement: Literal["slots", "round_robin"] | str = "slots",
        slots_per_worker: int | str = 1,
        evaluator_timeout: float | str = 300,
        bypass_proxies: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.worker_count = worker_count
        self.parameter_server_count = parameter_server_count
        self.chief = chief
        self.evaluator_count = evaluator_count
        self.placement = placement
        self.slots_per_worker = slots_per_worker
        self.evaluator_timeout = evaluator_timeout
        self.bypass_proxies = bypass_proxies

    def spec(self, context: Context | Mapping[str, Any], source: Snapshot | None) -> JobSpec:
        """Return the validated specification of this try.

        :raises PlanError: an argument cannot be right
        """
        spec = super().spec(context, source)
        if spec.nproc_per_node is not None:
            raise PlanError(
                f"nproc_per_node={self.nproc_per_node!r} has no meaning for a TensorFlow cluster: "
                "worker_count= and the other counts say how many ranks there are; take it out"
            )
        return dataclasses.replace(spec, cluster=self._cluster())

    def _cluster(self) -> Cluster:
        workers = whole_number("worker_count", self.worker_count)
        if workers is None:
            raise PlanError("worker_count= is not given; a cluster has at least one worker")
        servers = count("parameter_server_count", self.parameter_server_count)
        return Cluster(
            worker_count=workers,
            parameter_server_count=servers,
            chief=switch("chief", self.chief),
            evaluator_count=count("evaluator_count", self.evaluator_count),
            placement=choice("placement", self.placement, PLACEMENTS),
            slots_per_worker=whole_number("slots_per_worker", self.slots_per_worker) or 1,
            evaluator_timeout=seconds("evaluator_timeout", self.evaluator_timeout),
            bypass_proxies=switch("bypass_proxies", self.bypass_proxies),
        )
