"""What is measured of a way, and how often: in pairs, ours and the peer by turns."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.stage import RANKS
from bench.ways import LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.rows import Row
    from bench.stage import Stage
    from bench.ways import Way

# What each rank writes as its first line, in one piece: the ranks of a torchrun share a pipe. Its
# clock is ours: test hosts are of this machine.
SIGN = 'os.write(1, f"here {os.uname().nodename} {os.getpid()} {time.monotonic():.6f}\\n".encode())'
_SIGN = re.compile(r"\bhere (\S+) (\d+) (\d+\.\d+)")


class NotMeasured(Exception):
    """Raised when a run did not do what was to be measured; says what was seen instead."""


@dataclass
class Signs:
    """What a run printed, and the ranks that have given a sign, by host and process there."""

    times: dict[tuple[str, int], float] = field(default_factory=dict)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=30))
    settled: threading.Event = field(default_factory=threading.Event)

    def take(self, line: str) -> None:
        """Take a line of the run."""
        self.last_lines.append(line)
        if found := _SIGN.search(line):
            self.times[found[1], int(found[2])] = float(found[3])
        if len(self.times) == RANKS:
            self.settled.set()

    def check(self) -> None:
        """Check that every rank has given a sign.

        :raises NotMeasured: one has not
        """
        if len(self.times) != RANKS:
            raise self.refused(f"{len(self.times)} of {RANKS} ranks began")

    def refused(self, why: str) -> NotMeasured:
        """Return the error for a run that cannot be counted."""
        return NotMeasured("\n    ".join([f"{why}; its last lines:", *self.last_lines]))


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row as it was measured: seconds of each pair, and the load before and after."""

    row: Row
    ours: tuple[float, ...]
    peer: tuple[float, ...]
    load: tuple[float, float]


def measure(row: Row, stage: Stage, pairs: int) -> Measurement:
    """Measure both sides of a row by turns.

    One round more comes first and is not counted: it fills the caches of both.

    :raises NotMeasured: a run did not do what was to be measured
    :raises TrainingError: ours could not be started
    """
    before = os.getloadavg()[0]
    sides = (row.ours, row.peer)
    seconds: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs + 1):
        # Each is first in every other pair, as what runs second may find the machine warmer.
        for side in (0, 1) if pair % 2 else (1, 0):
            took = sides[side](stage)
            if pair:
                seconds[side].append(took)
    return Measurement(row, tuple(seconds[0]), tuple(seconds[1]), (before, os.getloadavg()[0]))


def start(way: Way, script: str, stage: Stage) -> float:
    """Return the seconds from the submission to the first line of the script in the last rank."""
    stage.place(script)
    signs = Signs()
    began = time.monotonic()
    ended_well = way(stage, signs.take)
    signs.check()
    if not ended_well:
        raise signs.refused("it failed")
    return max(signs.times.values()) - began


def death(way: Way, script: str, stage: Stage) -> float:
    """Return the seconds from the death of a rank on the last host until no rank lives anywhere.

    :param script: gives its sign, and does not end
    """
    stage.place(script)
    signs = Signs()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(way, stage, signs.take)
        running.add_done_callback(lambda _: signs.settled.set())
        signs.settled.wait()
        if running.done():
            running.result()
            raise signs.refused("it ended by itself")
        took = _kill_one(_ranks(signs, stage))
    if running.result():
        raise signs.refused("a rank was killed, and it ended well")
    return took


def _ranks(signs: Signs, stage: Stage) -> list[int]:
    """Return the ranks' processes by this machine's numbers, those of the last host last."""
    ranks = [
        process.outside
        for host in stage.fleet.hosts
        for process in host.processes()
        if (host.name, process.pid) in signs.times
    ]
    if len(ranks) != RANKS:
        raise signs.refused(f"{len(ranks)} of {RANKS} ranks were found")
    return ranks


def _kill_one(ranks: list[int]) -> float:
    """Kill the last rank, and return the seconds until all have ended."""
    with ExitStack() as stack:
        descriptors = [os.pidfd_open(pid) for pid in ranks]
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        killed = time.monotonic()
        signal.pidfd_send_signal(descriptors[-1], signal.SIGKILL)
        _wait_for_ends(descriptors, killed + LIMIT)
        return time.monotonic() - killed


def _wait_for_ends(descriptors: Sequence[int], deadline: float) -> None:
    """Return once the processes behind these descriptors have all ended, as zombies or wholly.

    :raises NotMeasured: some have not at the deadline
    """
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    left = set(descriptors)
    while left:
        ended = poller.poll(max(0, deadline - time.monotonic()) * 1000)
        if not ended:
            raise NotMeasured(f"{LIMIT} s after a rank was killed, {len(left)} others still live")
        for descriptor, _ in ended:
            poller.unregister(descriptor)
            left.discard(descriptor)
