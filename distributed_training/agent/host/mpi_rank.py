"""A rank below mpirun, which tells it who it is; its node's supervisor tells it all the rest."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from array import array
from fnmatch import fnmatchcase

from . import bundle
from .errors import Refusal
from .exits import exit_of
from .locks import INHERITED_FD
from .node import Node
from .rank import FORWARDED, Wrapper, die_with_parent
from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


NUMBERS = (  # of the rank, and of all ranks
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
# What an MPI tells its library. All else of its environment is the head's, or a daemon's.
MPI_OWN = (
    "OMPI_*", "OPAL_*", "ORTE_*", "PRTE_*", "PMIX_*", "PMI_*", "HYDRA_*", "HYDI_*", "I_MPI_*",
    "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPIR_*", "MPICH_*", "IPATH_NO_BACKTRACE",
    "HFI_NO_BACKTRACE",
)  # fmt: skip
FILES = 256  # that an answer may hand over: Linux has a limit of 253
LIBRARIES = "LD_LIBRARY_PATH"  # Open MPI adds its own folder


def below_mpirun() -> Wrapper:
    """Return the wrapper of the rank that mpirun has started here."""
    rank, size = numbers()
    node = Node.of_folder(os.path.dirname(os.path.abspath(bundle.PATH)))
    told = asked(node, {"verb": "rank", "rank": rank, "size": size})
    if told is None:
        sys.exit(f"rank {rank}: the agent of {node.mark} does not answer any more")
    if not told["ok"]:
        sys.exit(f"rank {rank}: {told['error']['message']}")
    env = {**told["env"], **from_mpi(told["set"]), "DT_RANK": str(rank)}
    return MpiRank(node, told["argv"], rank, env)


def asked(node: Node, message: Json) -> Json | None:
    """Return the supervisor's answer, and keep the locks that come with it for the program.

    A slot is free only when no rank holds its lock, and Open MPI closes what its ranks inherit.
    """
    link = node.connect()
    if link is None:
        return None
    answer, locks = b"", array("i")
    with link:
        link.sendall(encode(message).encode() + b"\n")
        while not answer.endswith(b"\n"):
            data, ancillary, _, _ = link.recvmsg(1 << 16, socket.CMSG_SPACE(FILES * locks.itemsize))
            if not data:
                return None
            answer += data
            for _, _, files in ancillary:
                locks.frombytes(files[: len(files) - len(files) % locks.itemsize])
    for lock in locks:
        fcntl.fcntl(lock, fcntl.F_DUPFD, INHERITED_FD)
        os.close(lock)
    reply: Json = json.loads(answer)
    return reply


class MpiRank(Wrapper):
    """A rank that is killed when mpirun kills what it has started, and not before."""

    def __init__(self, node: Node, program: list[str], rank: int, env: dict[str, str]) -> None:
        super().__init__(program, rank, node.path, env, node.at("work"))
        self.node = node
        self.bind = die_with_parent

    def leave(self, status: int) -> None:
        """Ask the supervisor: an mpirun that sees a rank end badly kills all others at once."""
        for name in FORWARDED:
            signal.signal(signal.Signals[name], signal.SIG_DFL)
        self.node.ask({"verb": "leave", "succeeded": exit_of(status) == (0, None)})


def numbers() -> tuple[int, int]:
    """Return the rank and the number of ranks by mpirun's own count."""
    for rank, size in NUMBERS:
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    tried = ", ".join(rank for rank, _ in NUMBERS)
    sys.exit(f"agent rank: mpirun has set none of {tried}")


def from_mpi(kept: list[str]) -> dict[str, str]:
    """Return the variables of mpirun's that its library needs.

    :param kept: names that the user, or the plan, has set to something else
    """
    names: list[str] = list(MPI_OWN)
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        names.append(LIBRARIES)
    return {
        name: value
        for name, value in os.environ.items()
        if name not in kept and any(fnmatchcase(name, pattern) for pattern in names)
    }


def command(commands: dict[int, Json], message: Json) -> Json:
    """Return what a rank is to execute, for the supervisor's answer.

    :param commands: of the ranks that belong here
    :raises Refusal: it does not belong here, or there are more or fewer than the plan has
    """
    rank, size = message["rank"], message["size"]
    found = commands.get(rank)
    if found is None:
        here = ", ".join(map(str, sorted(commands))) or "none"
        raise Refusal(
            "misplaced",
            f"mpirun has started it on this host, where the plan has {here}: take out of "
            "mpirun_arguments what places ranks otherwise",
        )
    if size != int(found["env"]["WORLD_SIZE"]):
        raise Refusal(
            "misplaced",
            f"mpirun has started {size} ranks and not {found['env']['WORLD_SIZE']}: take out of "
            "mpirun_arguments what says how many",
        )
    return {"ok": True, **found}
