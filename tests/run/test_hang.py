"""When a job counts as silent, and what is told of it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import AgentError, TrainingError
from distributed_training.fleet import Host
from distributed_training.run import hang
from distributed_training.run.hang import Findings, Quiet, findings
from distributed_training.run.job import JobRef, NodeRef
from distributed_training.run.stacks import Frame, Stand
from distributed_training.run.verdict import NodeState

if TYPE_CHECKING:
    from collections.abc import Mapping

NODES = tuple(
    NodeRef(n, Host(f"gpu{n + 1}"), f"10.0.0.{n + 1}", "/r", (2 * n, 2 * n + 1)) for n in (0, 1)
)
REF = JobRef("job", 0, NODES, 30.0, 60.0, 900.0, 0.0)
STEP, LATE = Frame("train.py", 30, "step"), Frame("train.py", 12, "late")
REDUCE = Frame("torch/distributed/distributed_c10d.py", 2806, "all_reduce", own=False)


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        """Return what it shows."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hang, "time", clock)
    return clock


def sign(output: int) -> dict[str, object]:
    return {"k": "alive", "output": output}


def test_silence_counts_from_the_last_line_up_to_the_last_sign_of_life(clock: Clock) -> None:
    quiet = Quiet()
    quiet.note(0, {"t": 1, "k": "log"})
    clock.now += 5
    quiet.note(0, sign(7))  # the first sign is no news of silence: it may count anything
    clock.now += 5
    quiet.note(0, sign(7))
    clock.now += 100
    assert quiet.seconds([0]) == 5


def test_output_that_is_only_counted_is_output(clock: Clock) -> None:
    """A metric, or a line beyond what the journal takes."""
    quiet = Quiet()
    for output in (7, 7, 8):
        clock.now += 5
        quiet.note(0, sign(output))
    assert quiet.seconds([0]) == 0


def test_a_host_that_is_not_heard_of_may_be_working(clock: Clock) -> None:
    quiet = Quiet()
    for _ in range(9):
        clock.now += 5
        quiet.note(0, sign(7))
    assert quiet.seconds([0, 1]) == 0
    quiet.note(1, {"t": 1, "k": "started"})
    clock.now += 5
    quiet.note(0, sign(7))
    assert quiet.seconds([0, 1]) == 0
    quiet.note(1, sign(3))
    assert quiet.seconds([0, 1]) == 0


def test_an_outage_does_not_hide_that_nothing_was_printed_meanwhile(clock: Clock) -> None:
    quiet = Quiet()
    quiet.note(0, sign(7))
    clock.now += 900
    quiet.note(0, sign(7))
    assert quiet.seconds([0]) == 900


class Agent:
    """An agent that answers, or refuses, as a test says."""

    def __init__(self, answer: dict[str, object] | TrainingError) -> None:
        self.answer = answer

    async def call(self, verb: str, **fields: object) -> dict[str, object]:
        """Answer."""
        assert verb == "dump"
        if isinstance(self.answer, TrainingError):
            raise self.answer
        return self.answer


def found(*answers: dict[str, object] | TrainingError, ended: int | None = None) -> Findings:
    agents = {f"gpu{n + 1}": Agent(answer) for n, answer in enumerate(answers)}
    states = [NodeState(node) for node in NODES]
    if ended is not None:
        exits: list[Mapping[str, Any]] = [
            {"rank": rank, "code": 0, "signal": None} for rank in NODES[ended].ranks
        ]
        states[ended] = NodeState(NODES[ended], exits, {"state": "success"})
    return asyncio.run(findings(REF, agents, states))  # type: ignore[arg-type]


def answer(*stacks: str, **evidence: object) -> dict[str, object]:
    def rank(text: str) -> dict[str, object]:
        process = {"text": text, "state": "S (sleeping)", "command": "python"}
        return {"state": "running", "processes": [process]}

    return {"ranks": {str(n): rank(text) for n, text in enumerate(stacks)}, **evidence}


HERE = 'Current thread 0x1 (most recent call first):\n  File "train.py", line 3 in f\n'


def test_a_host_that_gives_no_answer_is_told_with_its_reason() -> None:
    learnt = found(answer(HERE, HERE), AgentError("gpu2: fork failed"))
    error = learnt.error(60)
    assert "no stacks of gpu2: gpu2: fork failed" in error.message
    assert "ranks 0, 1 on gpu1: at train.py:3 in f" in error.message


def test_ranks_of_a_host_whose_part_has_ended_are_told_as_ended() -> None:
    error = found(answer(HERE, HERE), answer(), ended=1).error(60)
    assert "ranks 2, 3 on gpu2" not in error.message.splitlines()[0]
    assert "ended before, with status 0" in error.message


def test_gpus_collectives_and_failed_hooks_are_in_the_log() -> None:
    evidence = {"gpus": ["GPU 0: 0 % busy"], "nccl": {"1": ["8 all_reduce"]}, "errors": "E: x\n"}
    lines = list(found(answer(HERE, HERE, **evidence), answer()).lines())
    assert lines[:2] == ["ranks 0, 1 on gpu1: at train.py:3 in f", "    train.py:3 in f"]
    assert "gpu1: GPU 0: 0 % busy" in lines
    assert "rank 1 on gpu1: last collectives: 8 all_reduce" in lines
    assert lines[-1] == "gpu1: ranks could not be prepared for this: E: x"


def test_the_verdict_names_the_odd_rank_first_and_carries_its_stack() -> None:
    stands = [Stand(rank, "gpu1", (REDUCE, STEP)) for rank in (0, 1, 2)]
    error = Findings([*stands, Stand(3, "gpu2", (LATE,))]).error(600)
    assert (error.rank, error.host, error.log_tail) == (3, "gpu2", ("train.py:12 in late",))
    first, second, *_ = error.message.splitlines()
    assert first.startswith("no rank has printed a line or noted a metric for 600 s (hang_timeout)")
    assert second == ("rank 3 on gpu2 stands elsewhere than the others: at train.py:12 in late")
    assert "(innermost: torch/distributed/distributed_c10d.py:2806 in all_reduce)" in error.message


def test_those_who_serve_are_no_majority_that_a_worker_stands_out_from() -> None:
    serves = Frame("train.py", 50, "serve")
    stands = [Stand(rank, "gpu1", (serves,)) for rank in range(3, 9)]
    works = [Stand(0, "gpu1", (STEP,)), Stand(1, "gpu1", (STEP,)), Stand(2, "gpu2", (LATE,))]
    error = Findings([*works, *stands], servers=frozenset(range(3, 9))).error(600)
    assert error.rank == 2
    assert "train.py:50 in serve" in error.message


def test_a_verdict_on_many_ranks_stays_short() -> None:
    stands = [Stand(rank, "gpu1", (Frame("train.py", rank, "f"),)) for rank in range(1000)]
    most = [Stand(rank, "gpu2", (STEP,)) for rank in range(1001)]
    assert len(Findings([*stands, *most]).error(60).message) < 20_000


def test_the_limit_goes_to_whoever_watches_next() -> None:
    ref = dataclasses.replace(REF, hang_timeout=600.0)
    assert JobRef.from_dict(ref.to_dict()) == ref


def test_a_thousand_places_do_not_flood_log_and_verdict() -> None:
    stands = [Stand(rank, "gpu1", (REDUCE, Frame("train.py", rank, "f"))) for rank in range(1000)]
    assert len(Findings(stands).error(60).message) < 20_000
    assert len(list(Findings(stands).lines())) < 100


def test_stacks_in_the_log_are_bounded() -> None:
    text = "Current thread 0x1:\n" + '  File "x.py", line 3 in f\n' * 1000
    lines = list(Findings([Stand(0, "gpu1", (STEP,), text=text)]).lines())
    assert len(lines) < 70
    assert "… 941 lines" in lines[1]
