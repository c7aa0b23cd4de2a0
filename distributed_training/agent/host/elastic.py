"""The ranks of a node whose torchrun may start them again: with other numbers, and other peers."""

from __future__ import annotations

import signal

from .processes import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Json


class Elastic:
    """Which ranks a node has now.

    :param ranks: that it has by the plan, in the order of their local ranks
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.nodes_left: int | None = None  # of a job that has lost some
        self._places = dict(enumerate(ranks))
        self._world_size = 0
        self._programs: dict[int, tuple[Process | None, Json]] = {}
        self._given_up: set[int] = set()
        self._logs: list[tuple[str, int]] = []

    @property
    def ranks(self) -> set[int]:
        """Their numbers."""
        return set(self._places.values())

    @property
    def told(self) -> Json:
        """What the last line of the journal tells of them."""
        return {"ranks": sorted(self.ranks), "world_size": self._world_size}

    def begins(self, record: Json) -> str | None:
        """Note a rank that torchrun has started, and return what to tell of its group, once."""
        group = record["group"]
        self._places[group["local_rank"]] = record["rank"]
        self._world_size = group["world_size"]
        self._logs.append((record["name"], record["rank"]))
        self._programs[record["pid"]] = Process.find(record["pid"]), record
        self._given_up.discard(record["pid"])
        if group["local_rank"] != 0:
            return None
        ranks, nodes = group["world_size"], group["nodes"]
        return f"torchrun starts ranks, here from number {record['rank']}: {ranks} on {nodes} nodes"

    def new_logs(self) -> list[tuple[str, int]]:
        """Return name and rank of each log that has come since the last call."""
        new, self._logs = self._logs, []
        return new

    def group_of(self, pid: int) -> Json:
        """Return what is known of the ranks that were started with one."""
        group: Json = self._programs[pid][1]["group"]
        return group

    def gave_up(self, pid: int) -> bool:
        """Tell whether a rank was ended by us, while the job goes on."""
        return pid in self._given_up

    def give_up(self) -> set[int]:
        """End ranks that have peers on a host that is lost, and return their numbers.

        They may wait for these for ever. torchrun notices, and starts its ranks again with those on
        the hosts that are left.
        """
        ended: set[int] = set()
        if self.nodes_left is None:
            return ended
        for pid, (process, record) in self._programs.items():
            waits = record["group"]["nodes"] > self.nodes_left and not self.gave_up(pid)
            if waits and process and process.alive():
                self._given_up.add(pid)
                process.send(signal.SIGKILL)
                ended.add(record["rank"])
        return ended


def comes_again(record: Json) -> bool:
    """Tell whether torchrun goes on after the end of a rank, which it wanted or makes up for."""
    group = record.get("group")
    made_up = group and record["code"] != 0 and group["restarts_left"] > 0
    return bool((group and record["asked"]) or made_up)
