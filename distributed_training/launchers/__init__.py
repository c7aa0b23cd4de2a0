"""How ranks are started: one file per family of launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_training.errors import PlanError
from distributed_training.launchers.jax import JaxLauncher
from distributed_training.launchers.mpi import MpiLauncher
from distributed_training.launchers.process import ProcessLauncher
from distributed_training.launchers.ray import RayLauncher
from distributed_training.launchers.tensorflow import TensorFlowLauncher
from distributed_training.launchers.torchrun import TorchrunLauncher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_training.launchers.base import Launcher
    from distributed_training.plan import JobSpec, Offer, Plan

LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher
    for launcher in (
        ProcessLauncher(),
        TorchrunLauncher(),
        MpiLauncher(),
        TensorFlowLauncher(),
        JaxLauncher(),
        RayLauncher(),
    )
}


def plan(spec: JobSpec, offers: Sequence[Offer], attempt: int = 0) -> Plan:
    """Return the complete plan of a job, made by its launcher.

    :raises PlanError: the launcher is unknown, or the request does not fit the offers.
    """
    if spec.launcher not in LAUNCHERS:
        raise PlanError(f"launcher={spec.launcher!r} is none of {', '.join(LAUNCHERS)}")
    return LAUNCHERS[spec.launcher].plan(spec, offers, attempt)
