"""The same seed brings the same faults, and a deck holds every kind."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.chaos.scenario import HOSTS, KINDS, rounds


def drawn(seed: int, faults: int) -> list[str]:
    return [fault.kind for part in rounds(seed, faults) for fault in part.faults]


def test_a_seed_always_brings_the_same() -> None:
    first, second = list(rounds(7, 50)), list(rounds(7, 50))
    assert first == second
    assert [list(islice(part.jobs(), 9)) for part in first] == [
        list(islice(part.jobs(), 9)) for part in second
    ]


def test_another_seed_brings_something_else() -> None:
    assert drawn(7, 50) != drawn(8, 50)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    assert drawn(7, 200)[:60] == drawn(7, 60)


@pytest.mark.parametrize("faults", [1, 20, 41, 200])
def test_there_are_as_many_faults_as_asked_for(faults: int) -> None:
    assert len(drawn(3, faults)) == faults


def test_every_kind_comes_before_any_comes_too_often() -> None:
    deck = drawn(5, sum(KINDS.values()))
    assert {kind: deck.count(kind) for kind in KINDS} == KINDS


def test_jobs_have_hosts_and_some_have_no_end() -> None:
    jobs = list(islice(next(rounds(1, 20)).jobs(), 60))
    assert all(set(job.hosts) <= set(HOSTS) and job.hosts for job in jobs)
    assert {job.lines is None for job in jobs} == {True, False}
    assert len({job.key for job in jobs}) == 60
