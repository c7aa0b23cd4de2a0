"""Which mpirun starts the ranks: what a user says of it, and what hosts have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Family = Literal["openmpi", "mpich", "intelmpi"]
FAMILIES: tuple[Family, ...] = get_args(Family)
TITLES: dict[Family, str] = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI"}


@dataclass(frozen=True, slots=True)
class MpiOptions:
    """What a user asks of an mpirun.

    :param family: which one it has to be; None: whichever the hosts have
    :param program: its path or name on the hosts; None: the one beside the ranks' interpreter, else
        that of the PATH
    :param arguments: further ones for it
    :param allow_run_as_root: let it run as root
    """

    family: Family | None = None
    program: str | None = None
    arguments: tuple[str, ...] = ()
    allow_run_as_root: bool = False


@dataclass(frozen=True, slots=True)
class Mpirun:
    """The mpirun that all hosts of a job have, found by asking it for its version."""

    program: str  # its absolute path
    family: Family
    version: str

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.partition(".")[0])

    def __str__(self) -> str:
        return f"{TITLES[self.family]} {self.version} ({self.program})"
