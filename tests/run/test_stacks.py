"""Where ranks stand, and which one is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_training.run.stacks import Frame, Stand, frames, odd_ones, stand, together

WORK = "/home/u/.distributed_training/jobs/digits-1/0/1/work"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
WAITING = f"""\
Thread 0x00007fa1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007fa2 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 81 in wrapper
  File "{WORK}/train.py", line 30 in step
  File "{WORK}/train.py", line 41 in <module>
"""
SPIED = f"""\
Process 512: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 512 (idle): "MainThread"
    late ({WORK}/models/data.py:7)
    <module> ({WORK}/train.py:41)
Thread 513 (idle): "Thread-1"
    wait (/usr/lib/python3.11/threading.py:331)
"""

BARRIER = Frame("torch/distributed/distributed_c10d.py", 4000, "barrier", own=False)
STEP, LATE = Frame("train.py", 30, "step"), Frame("train.py", 12, "late")
TRAIN = Frame("transformers/trainer.py", 9, "train", own=False)
MAIN = Frame("train.py", 3, "<module>")


def at(rank: int, *stack: Frame) -> Stand:
    """Return where a rank of the second of two hosts, or of the first, stands."""
    return Stand(rank, f"gpu{1 + rank // 2}", stack)


def test_the_stack_of_the_main_thread_is_read_innermost_first() -> None:
    assert [str(frame) for frame in frames(WAITING)] == [
        "torch/distributed/distributed_c10d.py:2806 in all_reduce",
        "torch/distributed/c10d_logger.py:81 in wrapper",
        "train.py:30 in step",
        "train.py:41 in <module>",
    ]
    assert [frame.own for frame in frames(WAITING)] == [False, False, True, True]


def test_py_spy_tells_the_same() -> None:
    assert [str(frame) for frame in frames(SPIED)] == [
        "models/data.py:7 in late",
        "train.py:41 in <module>",
    ]


@pytest.mark.parametrize("text", ["", "nonsense", "Current thread 0x1 (most recent call first):\n"])
def test_what_tells_nothing_has_no_frames(text: str) -> None:
    assert frames(text) == ()


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/python3.11/threading.py",
        "/usr/lib/python3/dist-packages/numpy/x.py",
        "/opt/conda/lib/python3.13t/asyncio/x.py",
        f"{WORK}/.venv/lib/python3.12/site-packages/torch/x.py",
        "<frozen runpy>",
    ],
)
def test_libraries_are_not_the_users_code(path: str) -> None:
    assert not Frame.of(path, "1", "f").own


@pytest.mark.parametrize("path", ["<string>", "/srv/train.py", f"{WORK}/lib/data.py"])
def test_anything_else_is(path: str) -> None:
    assert Frame.of(path, "1", "f").own


def test_a_rank_that_waits_is_told_by_its_own_line_and_the_innermost() -> None:
    told = {"state": "running", "processes": [process(WAITING)]}
    assert stand(3, "gpu2", told).place == (
        "at train.py:30 in step "
        "(innermost: torch/distributed/distributed_c10d.py:2806 in all_reduce)"
    )


def process(text: str, state: str = "S (sleeping)", command: str = "python") -> dict[str, str]:
    return {"text": text, "state": state, "command": command}


def test_a_parent_that_waits_for_its_child_is_passed_over() -> None:
    parent = 'Current thread 0x1 (x):\n  File "/usr/lib/python3.11/subprocess.py", line 9 in wait\n'
    told = {"state": "running", "processes": [process(""), process(parent), process(SPIED)]}
    assert str(stand(0, "gpu1", told).own) == "models/data.py:7 in late"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "was never started"),
        ({"state": "exited", "code": 0, "signal": None}, "ended before, with status 0"),
        ({"state": "exited", "code": None, "signal": "SIGKILL"}, "ended before, by SIGKILL"),
        ({"state": "running", "processes": []}, "gave no stacks (no process is left of it)"),
        (
            {"state": "running", "processes": [process("", "D (disk sleep) in nfs_wait")]},
            "gave no stacks (python: D (disk sleep) in nfs_wait)",
        ),
        (
            {"state": "running", "processes": [process(SPIED, "T (stopped)")]},
            "is held by a signal or a debugger (python: T (stopped))",
        ),
    ],
)
def test_a_rank_without_stacks_is_told_by_what_is_known(told, words) -> None:
    assert stand(2, "gpu2", told).place == words


def test_a_rank_that_never_joins_is_the_odd_one() -> None:
    waiting = [at(rank, BARRIER, STEP) for rank in (0, 1, 3)]
    assert odd_ones([*waiting, at(2, LATE, MAIN)]) == [at(2, LATE, MAIN)]


def test_of_two_ranks_the_one_that_does_not_wait_is_odd() -> None:
    assert [each.rank for each in odd_ones([at(0, BARRIER, STEP), at(1, LATE)])] == [1]


def test_half_of_the_ranks_may_be_odd() -> None:
    """As when the file system of one host hangs."""
    stands = [at(0, BARRIER, STEP), at(1, BARRIER, STEP), at(2, LATE), at(3, LATE)]
    assert [each.rank for each in odd_ones(stands)] == [2, 3]


def test_ranks_are_told_apart_inside_a_library_where_their_own_line_is_one() -> None:
    most = [at(rank, BARRIER, TRAIN, MAIN) for rank in range(3)]
    read = Frame("datasets/load.py", 5, "read", own=False)
    assert [each.rank for each in odd_ones([*most, at(3, read, TRAIN, MAIN)])] == [3]


def test_lines_of_a_loop_inside_a_library_make_no_difference() -> None:
    polls = [Frame("x.py", line, "poll", own=False) for line in (1, 2, 3)]
    assert odd_ones([at(rank, poll, MAIN) for rank, poll in enumerate(polls)]) == []


def test_a_rank_that_has_ended_or_cannot_be_asked_is_odd_among_those_that_wait() -> None:
    ended = Stand(1, "gpu1", instead="ended before, with status 0")
    assert odd_ones([at(0, BARRIER, STEP), ended]) == [ended]


def test_the_one_that_waits_for_nobody_is_named_first() -> None:
    stands = [at(rank, BARRIER, STEP) for rank in range(5)]
    stands += [at(5, BARRIER, MAIN), at(6, LATE)]
    assert [each.rank for each in odd_ones(stands)] == [6, 5]


def test_where_all_wait_at_different_places_nobody_is_named() -> None:
    stands = [at(0, BARRIER, STEP), at(1, BARRIER, LATE)]
    assert odd_ones(stands) == []


PLACES = st.lists(st.sampled_from([STEP, LATE, MAIN, BARRIER, TRAIN]), min_size=1, max_size=4)


@given(place=PLACES, other=PLACES, size=st.integers(3, 16), data=st.data())
def test_one_among_many_is_named_whatever_the_order(place, other, size, data) -> None:
    most = [at(rank, *place) for rank in range(1, size)]
    odd = at(0, *other)
    stands = data.draw(st.permutations([*most, odd]))
    assert odd_ones(stands) in ([odd], []) or place == other
    if odd.own != most[0].own:
        assert odd_ones(stands) == [odd]


@given(places=st.lists(PLACES, max_size=12))
def test_all_ranks_are_in_one_group_each_and_never_all_are_odd(places) -> None:
    stands = [at(rank, *place) for rank, place in enumerate(places)]
    grouped = [each for group in together(stands) for each in group]
    assert sorted(each.rank for each in grouped) == list(range(len(stands)))
    assert len(odd_ones(stands)) < max(1, len(stands))


@given(place=PLACES, size=st.integers(1, 9))
def test_ranks_that_stand_alike_have_no_odd_one(place, size) -> None:
    assert odd_ones([at(rank, *place) for rank in range(size)]) == []
