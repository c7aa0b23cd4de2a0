"""The table of `make frameworks`, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.environments import CHECKOUT, LOCKS
from dev.locks import MPI
from frameworks.checks import (
    all_passed,
    averaged,
    classified,
    counted,
    served,
    sharded,
    streamed,
    tracked,
)
from frameworks.environments import MPI4PY_RELEASE
from frameworks.row import WrongValue, prepared
from frameworks.rows import ROWS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.family}-{row.name}")
def test_what_a_row_runs_is_there(row):
    operator = row.operator(task_id="t", python="/env/bin/python")
    program = operator.script or operator.command.split()[-1]
    folder = operator.source_dir
    if row.before:  # what is sent is a copy of its folder
        folder = (CHECKOUT / row.before).parent
        assert operator.source_dir == str(prepared(row.before))
        assert (CHECKOUT / row.before).is_file()
    assert (Path(folder) / program).is_file()
    assert row.after is None or (CHECKOUT / row.after).is_file()


def test_every_environment_has_a_lock():
    assert {row.environment for row in ROWS} <= {lock.stem for lock in LOCKS.glob("*.txt")}


def test_the_tests_of_mpi4py_are_those_of_the_mpi4py_that_hosts_have():
    for name in MPI:
        assert MPI4PY_RELEASE in (LOCKS / f"mpi-{name}.txt").read_text().splitlines()


TESTS = {"ran": 1900, "skipped": 9, "bad": []}
TOGETHER = {"world_size": 4, "checksums": [1.0] * 4}
LIKES = TOGETHER | {"accuracy": 1.0, "seen": [list(range(rank, 800, 4)) for rank in range(4)]}
RUN = {
    "status": "FINISHED", "params": {"epochs": "2"}, "losses": [2.0, 1.0], "slopes": [3.0] * 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "result"),
    [
        (averaged, {"slopes": [6.0]}),
        (averaged, {"slopes": [0.0, 2.0, 4.0, 6.0]}),
        (averaged, {"slopes": [3.0, 3.0, 3.0, 3.001]}),
        (sharded, {"slopes": [3.0] * 4, "shares": [1.0] * 4}),
        (classified, TOGETHER | {"accuracy": 0.5}),
        (classified, TOGETHER | {"accuracy": 1.0, "world_size": 1}),
        (counted, TOGETHER | {"said": "six seven", "checksums": [1.0, 1.0, 1.0, 2.0]}),
        (counted, TOGETHER | {"said": "one one"}),
        (served, {"slope": 3.0, "held_by": "/job:worker/replica:0/task:0"}),
        (streamed, LIKES | {"accuracy": 0.5}),
        (streamed, LIKES | {"seen": [[*range(800), 1]] * 4}),
        (streamed, LIKES | {"seen": [[*range(800)], [], [], []]}),
        (tracked, RUN | {"status": "RUNNING"}),
        (tracked, RUN | {"losses": [2.0]}),
        (tracked, RUN | {"slopes": [3.0]}),
        (all_passed, {"ranks": [TESTS]}),
        (all_passed, {"ranks": [TESTS, {**TESTS, "ran": 1899}]}),
        (all_passed, {"ranks": [{**TESTS, "ran": 0}] * 2}),
        (all_passed, {"ranks": [TESTS, {**TESTS, "bad": ["testBcast"]}]}),
        (served, {"slope": 0.0, "held_by": "/job:ps/replica:0/task:0"}),
    ],
)
def test_a_wrong_value_is_told(check, result):
    with pytest.raises(WrongValue):
        check({"result": result})


def test_right_values_are_told_in_words():
    assert streamed({"result": LIKES}) == "accuracy 1.00, 800 samples, each once"
    assert tracked({"result": RUN}) == "slope 3.000 on 4 ranks, 2 losses in the store"
