"""What the web page shows of a job: one record of bounded size, made anew every few seconds."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

from distributed_training.errors import JobCancelled
from distributed_training.run.verdict import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from distributed_training.errors import TrainingError
    from distributed_training.run.job import JobRef, NodeRef

VERSION = 1  # of the record; whoever reads it leaves out what it does not know
KEY = "training"  # of the XCom in which the record is
LIMIT = 64 << 10  # bytes of a record
POINTS = 200  # of a curve
RANKS = 256  # that are shown of a job that has too many
VERDICT = 8 << 10  # characters
SILENT = 15.0  # seconds

Point = list[float]


class Curve:
    """A curve of which so many points are kept that it can be drawn; the last one is the newest."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.points = list(points)
        self._stride = 1
        self._count = len(self.points)

    def add(self, point: Point) -> None:
        """Add a point, and thin all of them out where they have become too many."""
        if self.points and self._count % self._stride:
            self.points[-1] = point
        else:
            self.points.append(point)
        self._count += 1
        if len(self.points) > POINTS:
            self.points = self.points[::2]
            self._stride *= 2


class Picture:
    """What is known of a job while it is watched."""

    def __init__(self, ref: JobRef) -> None:
        self._ref = ref
        self.metrics_read = 0  # bytes of rank 0's file
        self._began: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self._series: dict[str, Curve] = {}
        self._usage: dict[tuple[str, ...], Curve] = {}
        self._totals: dict[tuple[str, ...], float] = {}

    def go_on(self, before: Mapping[str, Any]) -> None:
        """Go on with the curves of an earlier watcher, by its last record."""
        if not is_of(before, self._ref):
            return
        self._series = {n: Curve(points) for n, points in before.get("series", {}).items()}
        self.metrics_read = before.get("metrics_read", 0)
        for rank in before.get("ranks", ()):
            if rank["started"] is not None:
                self._began[rank["rank"]] = rank["started"]
        for place, value in _leaves(before.get("usage", {})):
            if isinstance(value, list):
                self._usage[place] = Curve(value)
            else:
                self._totals[place] = value

    def note(self, node: NodeRef, record: Mapping[str, Any], clock: float) -> None:
        """Take what an agent sends: a record of its journal, or a sign of life.

        :param clock: seconds by which the host's clock is ahead of ours
        """
        self._heard[node.node_rank] = time.time()
        if record["k"] == "started" and record["rank"] is not None:
            self._began[record["rank"]] = record["t"] - clock
        elif record["k"] == "alive":
            if node is self._ref.head:
                self._measure(record.get("metrics") or {}, clock)
            self._use(node.host.name, record.get("usage") or {})

    def _measure(self, metrics: Mapping[str, Any], clock: float) -> None:
        """Take the rows that rank 0 has noted."""
        self.metrics_read = metrics.get("offset", 0)
        for row in metrics.get("rows", ()):
            when = row.get("time", metrics["clock"] - clock)
            step = row.get("step")
            for name, value in row.items():
                if name not in ("time", "step"):
                    curve = self._series.setdefault(name, Curve())
                    last = curve.points[-1][1] + 1 if curve.points else 0
                    curve.add([when, last if step is None else step, value])

    def _use(self, host: str, usage: Mapping[str, Any]) -> None:
        if "cpu" in usage:
            self._draw((host, "cpu"), usage["cpu"])
        if "memory" in usage:
            self._fill((host,), *usage["memory"])
        for uuid, (busy, used, total) in usage.get("gpus", {}).items():
            self._draw((host, "gpus", uuid, "busy"), busy)
            self._fill((host, "gpus", uuid), used, total)
        for rank, (cores, resident) in usage.get("ranks", {}).items():
            self._draw((host, "ranks", rank, "cpu"), cores)
            self._draw((host, "ranks", rank, "memory"), resident)

    def _fill(self, place: tuple[str, ...], used: float, total: float) -> None:
        self._draw((*place, "memory"), used)
        self._totals[(*place, "memory_total")] = total

    def _draw(self, place: tuple[str, ...], value: float) -> None:
        self._usage.setdefault(place, Curve()).add([round(time.time(), 1), value])

    def first(self) -> dict[str, Any]:
        """Return what is to be shown of a job that is planned, as JSON values."""
        shown = self._record([NodeState(node) for node in self._ref.nodes], "preparing", None)
        return {**shown, "ranks": [{**rank, "state": "waiting"} for rank in shown["ranks"]]}

    def record(self, nodes: Sequence[NodeState]) -> dict[str, Any]:
        """Return what is to be shown of a job that runs, as JSON values."""
        return self._record(nodes, "running", None)

    def last(self, nodes: Sequence[NodeState], error: TrainingError | None) -> dict[str, Any]:
        """Return what is to be shown of the job once it has ended.

        :param error: why it failed, if it did
        """
        return self._record(nodes, state_of(error), error)

    def _record(
        self, nodes: Sequence[NodeState], state: str, error: TrainingError | None
    ) -> dict[str, Any]:
        ref, now = self._ref, time.time()
        record = {
            "v": VERSION,
            "job_id": ref.job_id,
            "attempt": ref.attempt,
            "restarts": ref.history.restarts,
            "state": state,
            "started": ref.started,
            "updated": now,
            "ended": None if state == "running" else now,
            "world_size": ref.world_size,
            "hosts": [self._host(node) for node in nodes],
            "ranks": [rank for node in nodes for rank in self._ranks(node, error)],
            "verdict": verdict_of(error),
            "metrics_read": self.metrics_read,
            "series": {name: curve.points for name, curve in self._series.items()},
        }
        return bounded(record, self._all_usage())

    def _host(self, node: NodeState) -> dict[str, Any]:
        heard = self._heard.get(node.ref.node_rank, self._ref.started)
        seen = "silent" if time.time() - heard > SILENT else "running"
        return {
            "name": node.ref.host.name,
            "address": node.ref.address,
            "state": "lost" if node.lost else "ended" if node.ended else seen,
            "reason": node.lost or (node.ended or {}).get("reason"),
        }

    def _ranks(self, node: NodeState, error: TrainingError | None) -> Iterator[dict[str, Any]]:
        exits = {exit_["rank"]: exit_ for exit_ in node.exits if not exit_.get("again")}
        for rank, slot in itertools.zip_longest(node.ref.ranks, node.ref.slots):
            exit_ = exits.get(rank)
            yield {
                "rank": rank,
                "host": node.ref.host.name,
                "role": node.ref.role(rank),
                "slot": slot,
                "state": _rank_state(rank, node, exit_, error),
                "started": self._began.get(rank),
                "ended": exit_["t"] - node.clock if exit_ else None,
                "code": exit_["code"] if exit_ else None,
                "signal": exit_["signal"] if exit_ else None,
            }

    def _all_usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {}
        leaves: dict[tuple[str, ...], Any] = {p: curve.points for p, curve in self._usage.items()}
        for (*path, name), value in {**leaves, **self._totals}.items():
            place = usage
            for step in path:
                place = place.setdefault(step, {})
            place[name] = value
        return usage


def is_of(record: Mapping[str, Any], ref: JobRef) -> bool:
    """Tell whether a record shows this attempt of a job."""
    return (record.get("v"), record.get("job_id"), record.get("attempt")) == (
        VERSION,
        ref.job_id,
        ref.attempt,
    )


def state_of(error: TrainingError | None) -> str:
    """Return in which state a job is that has ended so."""
    if error is None:
        return "success"
    return "stopped" if isinstance(error, JobCancelled) else "failed"


def verdict_of(error: TrainingError | None) -> dict[str, Any] | None:
    """Return what is told of a failure."""
    if error is None:
        return None
    told = ("host", "rank", "exit_code", "signal")
    return {
        "kind": type(error).__name__,
        "message": error.message[:VERDICT],
        **{name: getattr(error, name, None) for name in told},
    }


def bounded(record: dict[str, Any], usage: dict[str, Any]) -> dict[str, Any]:
    """Return a record that is not too large, leaving out what is missed least."""
    shared = {h: {n: v for n, v in own.items() if n != "ranks"} for h, own in usage.items()}
    without = {**record, "usage": {}}
    few = {name: points[-POINTS // 8 :] for name, points in record["series"].items()}
    for choice in (
        {**record, "usage": usage},
        {**record, "usage": shared},
        without,
        {**without, "series": few},
    ):
        if len(json.dumps(choice)) <= LIMIT:
            return choice
    return {**without, "series": {}, **_few(record)}


def _few(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return some ranks of a job that has too many, those first that did not do as they should."""
    ranks = sorted(record["ranks"], key=lambda rank: rank["state"] in ("running", "ended"))[:RANKS]
    hosts = {rank["host"] for rank in ranks}
    return {
        "ranks": sorted(ranks, key=lambda rank: rank["rank"]),
        "hosts": [host for host in record["hosts"] if host["name"] in hosts],
    }


def _rank_state(
    rank: int, node: NodeState, exit_: Mapping[str, Any] | None, error: TrainingError | None
) -> str:
    if exit_ is None:
        return "lost" if node.lost else "ended" if node.ended else "running"
    if error is not None and getattr(error, "rank", None) == rank:
        return "failed_first"
    if exit_["by_us"]:
        return "stopped"
    return "failed" if exit_["code"] or exit_["signal"] or exit_.get("alone") else "ended"


def _leaves(
    tree: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value
