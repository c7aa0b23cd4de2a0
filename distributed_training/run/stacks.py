"""Where the ranks of a job stand, and which of them stands elsewhere than the others."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

_THREAD = re.compile(r"^(?:Current thread|Thread) .*$", re.MULTILINE)
_FAULTHANDLER = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_PY_SPY = re.compile(r"^    (.*) \((.*):(\d+)\)$", re.MULTILINE)
_WORK = re.compile(r"^.*/jobs/[^/]+/\d+/\d+/work/")
_LIBRARY = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib(?:64)?/python3(?:\.\d+t?)?/")
_WAITS = re.compile(r"torch/distributed/(?!elastic|launcher|run)|horovod/|deepspeed/comm/|mpi4py/")
_INNERMOST = 3  # frames that say what a rank waits for, if it does
_PARENT = re.compile(r"subprocess\.py|multiprocessing/|torch/distributed/(elastic|launcher|run)")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack; ``own`` if it is in the user's code, not in a library."""

    file: str
    line: int
    function: str
    own: bool = True

    @classmethod
    def of(cls, file: str, line: str, function: str) -> Frame:
        """Return a frame with a path that says the same on all hosts."""
        library = _LIBRARY.match(file)
        short = file[library.end() :] if library else _WORK.sub("", file)
        own = library is None and not file.startswith("<frozen")
        return cls(short, int(line), function, own)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one rank stands.

    :param frames: of its main thread, innermost first
    :param instead: without frames: what is known of the rank
    :param text: all its stacks, as they were told
    """

    rank: int
    host: str
    frames: tuple[Frame, ...] = ()
    instead: str = "gave no stacks"
    text: str = ""

    @property
    def own(self) -> Frame | None:
        """The innermost frame in the user's code, else the innermost of all."""
        return next((frame for frame in self.frames if frame.own), next(iter(self.frames), None))

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, as far as its stack tells."""
        return any(_WAITS.match(frame.file) for frame in self.frames[:_INNERMOST])

    @property
    def place(self) -> str:
        """What it does, in words."""
        if self.own is None:
            return self.instead
        inner = self.frames[0]
        return f"at {self.own}" + (f" (innermost: {inner})" if inner != self.own else "")

    @property
    def name(self) -> str:
        """The rank and its host."""
        return f"rank {self.rank} on {self.host}"


def stand(rank: int, host: str, told: Mapping[str, Any] | None) -> Stand:
    """Return where a rank stands by what its agent has told of it."""
    if told is None:
        return Stand(rank, host, instead="was never started")
    if told["state"] != "running":
        return Stand(rank, host, instead=f"ended before, {_how(told)}")
    processes = told.get("processes") or ()
    read = [(process, frames(process["text"])) for process in processes]
    # A launcher or a parent that waits for its child is not what hangs.
    found = [pair for pair in read if pair[1] and not _PARENT.match(pair[1][0].file)]
    states = ", ".join(f"{each['command']}: {each['state']}" for each in processes)
    if any(each["state"].startswith("T") for each in processes):
        return Stand(rank, host, instead=f"is held by a signal or a debugger ({states})")
    for process, stack in found or read:
        if stack:
            return Stand(rank, host, stack, text=process["text"])
    return Stand(rank, host, instead=f"gave no stacks ({states or 'no process is left of it'})")


def frames(text: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, innermost first, as faulthandler or py-spy tell."""
    heads = list(_THREAD.finditer(text))
    if not heads:
        return ()
    # faulthandler goes from the newest thread to the main one; py-spy gives their names.
    main = next((head for head in heads if '"MainThread"' in head[0]), heads[-1])
    following = heads[heads.index(main) + 1 :]
    block = text[main.end() : following[0].start() if following else len(text)]
    plain = [Frame.of(*found) for found in _FAULTHANDLER.findall(block)]
    spied = [Frame.of(file, line, name) for name, file, line in _PY_SPY.findall(block)]
    return tuple(plain or spied)


def odd_ones(stands: Sequence[Stand]) -> list[Stand]:
    """Return the ranks that stand elsewhere than most, the likeliest cause first.

    Where there is no majority, they are those that do not wait for others while some do. None
    if all stand alike, or nothing tells them apart.
    """
    for place in (_line, _functions):
        groups = together(stands, place)
        most = max(groups, key=len, default=[])
        if len(groups) > 1 and 2 * len(most) > len(stands):
            others = [each for each in stands if each not in most]
            return sorted(others, key=lambda each: (each.waits, each.rank))
    free = sorted((each for each in stands if not each.waits), key=lambda each: each.rank)
    return free if len(free) < len(stands) else []


def together(
    stands: Iterable[Stand], place: Callable[[Stand], Hashable] | None = None
) -> list[list[Stand]]:
    """Return the ranks in groups that stand at the same place."""
    groups: defaultdict[Hashable, list[Stand]] = defaultdict(list)
    for each in stands:
        groups[(place or _all)(each)].append(each)
    return list(groups.values())


def _line(stand: Stand) -> Hashable:
    return stand.own or stand.instead


def _functions(stand: Stand) -> Hashable:
    # Without lines: those of a loop that waits change all the time.
    return tuple((frame.file, frame.function) for frame in stand.frames)


def _all(stand: Stand) -> Hashable:
    return _line(stand), _functions(stand)


def _how(told: Mapping[str, Any]) -> str:
    return f"by {told['signal']}" if told.get("signal") else f"with status {told.get('code')}"
