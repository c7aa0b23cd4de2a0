"""JAX training: one process per rank, which together are one ``jax.distributed`` system."""

from __future__ import annotations

from distributed_training.operators.base import TrainingOperator


class JaxDistributedOperator(TrainingOperator):
    """Runs JAX programs on the hosts of a fleet: ``jax.distributed.initialize()`` is all they need.

    Parameters of every training operator: see :class:`TrainingOperator`. Here ``master_port`` is
    the port of JAX's coordinator, which rank 0 is.
    """

    launcher = "jax"
