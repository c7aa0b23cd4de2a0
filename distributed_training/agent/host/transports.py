"""Which network the ranks of a node use between hosts, by what their own libraries say of it."""

from __future__ import annotations

import os
import re
import time

from .lines import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node import Node


NCCL_PREFIX = "network-nccl-"  # of the files that NCCL writes to; the plan has the same
LOOK_EVERY = 1.0  # seconds
WIDTH = 300  # of a line that is quoted
# NCCL tells the network of a communicator, and that of each channel between two ranks.
NCCL = re.compile(r"NCCL INFO .*?(?:via NET/|Using network |Assigned NET plugin )(\w+)")
# UCX tells the lanes of each kind of endpoint; before 1.13 it did not tell which are between hosts.
UCX = re.compile(
    r"\[\d+\.\d+\] \[.*?\] +\S+ +UCX +INFO +(?:\S+ inter-node cfg#\d+|ep_cfg\[\d+\]:) *(\S.*)"
)
INTEL = re.compile(r"MPI startup\(\): libfabric provider: (\w+)")
INSIDE = "/memory"  # a lane between two ranks of one host
RDMA_LANE = re.compile(r"\b(?:rc|dc|ud)(?:_\w+)?/")
TCP_LANE = re.compile(r"\btcp/")
SOCKETS = ("socket", "tcp", "udp", "net")  # as NCCL and libfabric call them


class Transports:
    """What libraries tell of their networks: NCCL in files of its own, others in the ranks' logs.

    ``fast`` and ``slow`` are the first lines that tell of a connection between hosts over
    InfiniBand or its like, and over sockets; empty while there is none.

    :param wanted: ranks have to use InfiniBand; else nobody listens
    """

    def __init__(self, node: Node, wanted: bool) -> None:
        self.wanted = wanted
        self.fast = self.slow = ""
        self._node = node
        self._offsets: dict[str, int] = {}
        self._looked = 0.0
        self._told = False

    def news(self) -> str:
        """Return the line that proves InfiniBand, once."""
        news = "" if self._told else self.fast
        self._told = bool(self.fast)
        return news

    def hear(self, lines: Sequence[str]) -> None:
        """Take lines of ranks."""
        if self.wanted:
            for line in lines:
                self._note(line)

    def look(self, at_once: bool = False) -> None:
        """Read what is new in NCCL's files, if the last look is a while ago."""
        if not self.wanted or (not at_once and time.monotonic() < self._looked + LOOK_EVERY):
            return
        self._looked = time.monotonic()
        for entry in os.scandir(self._node.at("logs")):
            if entry.name.startswith(NCCL_PREFIX):
                self._read(entry.path)

    def _read(self, path: str) -> None:
        with open(path, "rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + whole
        self.hear(data[:whole].decode("utf-8", "replace").splitlines())

    def _note(self, line: str) -> None:
        used = over_sockets(line)
        told = self._node.hide(clean(line))[:WIDTH]
        if used is True:
            self.slow = self.slow or told
        elif used is False:
            self.fast = self.fast or told


def over_sockets(line: str) -> bool | None:
    """Tell whether a connection between hosts uses sockets; None: the line tells of none."""
    named = NCCL.search(line) or INTEL.search(line)
    if named:
        return named[1].lower().startswith(SOCKETS)
    lanes = UCX.search(line)
    if not lanes or ("ep_cfg" in lanes[0] and INSIDE in lanes[1]):
        return None
    if RDMA_LANE.search(lanes[1]):
        return False
    return True if TCP_LANE.search(lanes[1]) else None
