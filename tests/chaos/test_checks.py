"""Checks that see nothing would be green for ever: here they have something to see."""

from __future__ import annotations

import dataclasses

import pytest

from tests.chaos.checks import (
    Findings,
    crowded,
    double_jobs,
    doubled_lines,
    false_success,
    lost_lines,
)
from tests.chaos.evidence import DONE, Printed, shown

RECORD = Printed("gpu1", 0, "aaaaaaaa", 3, True, 10.0, 20.0, False)
WHOLE = [0, 1, 2, DONE]


def test_a_whole_log_lacks_nothing() -> None:
    assert lost_lines(RECORD, WHOLE, may_be_cut=False) == 0
    assert doubled_lines(WHOLE) == 0


@pytest.mark.parametrize(
    ("numbers", "lost", "lost_if_cut"),
    [
        ([0, 2, DONE], 1, 1),
        ([0, 1], 2, 0),
        ([], 4, 0),
        ([0, 2, 1, DONE], 1, 1),
        ([1, 2, DONE], 1, 1),
    ],
    ids=["gap", "cut", "nothing", "order", "beginning"],
)
def test_lost_lines_are_seen(numbers: list[int], lost: int, lost_if_cut: int) -> None:
    assert lost_lines(RECORD, numbers, may_be_cut=False) == lost
    assert lost_lines(RECORD, numbers, may_be_cut=True) == lost_if_cut


def test_doubled_lines_are_seen() -> None:
    assert doubled_lines([0, 1, 1, 2, 2, DONE]) == 2


def test_a_line_that_was_printed_before_it_was_recorded_is_no_fault() -> None:
    assert lost_lines(RECORD, [0, 1, 2, 3], may_be_cut=True) == 0


def test_two_writers_are_seen() -> None:
    later = dataclasses.replace(RECORD, host="gpu2", process="bbbbbbbb", first=19.0, last=30.0)
    assert double_jobs([RECORD, later]) == 1
    assert double_jobs([RECORD, dataclasses.replace(later, first=21.0)]) == 0
    assert double_jobs([dataclasses.replace(RECORD, intruder=True)]) == 1


def test_more_ranks_than_room_are_seen() -> None:
    assert crowded([RECORD, RECORD], 2) == 0
    assert crowded([RECORD, RECORD, RECORD], 2) == 3


def test_a_success_needs_every_rank() -> None:
    other = dataclasses.replace(RECORD, rank=1, done=False)
    assert false_success("success", [RECORD, other], 2)
    assert false_success("success", [RECORD], 2)
    assert not false_success("failed", [RECORD], 2)
    assert not false_success("success", [RECORD, dataclasses.replace(other, done=True)], 2)


def test_what_a_log_shows_is_read_by_process() -> None:
    log = ["[rank 3 gpu2] aaaaaaaa 0", "[rank 3 gpu2] other", "[rank 3 gpu2] aaaaaaaa done"]
    assert shown(log) == {"aaaaaaaa": [0, DONE]}


def test_findings_add_up_to_one_line() -> None:
    whole = Findings(faults=2)
    assert whole.clean
    whole.add(Findings(faults=1, hangs=1))
    assert not whole.clean
    assert str(whole) == (
        "faults=3 orphans=0 lost_lines=0 doubled_lines=0 double_jobs=0 false_success=0 hangs=1"
    )
