"""The table: what is measured, against what a user would pick instead, and what is fast enough."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench.measure import SIGN, death, start
from bench.ways import mpirun, ours, torchrun
from distributed_training.mpirun import MpiOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.stage import Stage


@dataclass(frozen=True, slots=True)
class Target:
    """What is fast enough; None: not asked for.

    :param ratio: of our median to the peer's, at most
    :param seconds: of our median, at most
    """

    ratio: float | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        ratio = [f"≤ {self.ratio:g} x"] if self.ratio is not None else []
        seconds = [f"≤ {self.seconds:g} s"] if self.seconds is not None else []
        return ", ".join(ratio + seconds) or "none"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    :param name: for `ONLY=`
    :param what: is measured, in the words of the table
    :param against: what a user would pick instead
    :param environment: the lock in `requirements/` that the ranks' interpreter is made from
    :param ours: returns how many seconds it took us
    :param peer: returns how many seconds it took the peer
    """

    name: str
    what: str
    against: str
    environment: str
    ours: Callable[[Stage], float]
    peer: Callable[[Stage], float]
    target: Target


HELLO = f"import os, time\n{SIGN}\n"
HELLO_MPI = f"import os, time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n{SIGN}\n"
STAY = "time.sleep(3600)\n"  # longer than any run may take

our_mpi = partial(ours, launcher="mpi", mpi=MpiOptions())

ROWS = (
    Row(
        "start-mpi",
        "start, MPI, 4 hosts x 2: submit → mpi4py's group stands in every rank",
        "`mpirun` over its own ssh",
        "mpi-openmpi",
        partial(start, our_mpi, HELLO_MPI),
        partial(start, mpirun, HELLO_MPI),
        Target(ratio=1.2),
    ),
    Row(
        "start-torch",
        "start, torch, 4 hosts x 2: submit → first line of the script in every rank",
        "`torchrun` by parallel ssh",
        "torch",
        partial(start, ours, HELLO),
        partial(start, torchrun, HELLO),
        Target(ratio=0.75),
    ),
    Row(
        "death-mpi",
        "rank killed → no rank left, MPI, 4 hosts x 2",
        "`mpirun` abort",
        "mpi-openmpi",
        partial(death, our_mpi, HELLO_MPI + STAY),
        partial(death, mpirun, HELLO_MPI + STAY),
        Target(ratio=2, seconds=2),
    ),
    Row(
        "death-process",
        "rank killed → no rank left, one process per rank, 4 hosts x 2",
        "`mpirun` abort",
        "mpi-openmpi",
        partial(death, ours, HELLO + STAY),
        partial(death, mpirun, HELLO + STAY),
        Target(ratio=2, seconds=2),
    ),
)
