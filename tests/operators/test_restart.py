"""Who pays for another start."""

from __future__ import annotations

import pytest

from distributed_training.errors import (
    GpuFault,
    JobCancelled,
    NodeLost,
    OutOfMemory,
    PortTaken,
    RankFailed,
)
from distributed_training.operators.restart import Budget
from distributed_training.run.job import History


@pytest.mark.parametrize(
    ("error", "history"),
    [
        (NodeLost("x"), History(lost_hosts=1)),
        (GpuFault("x"), History(lost_hosts=1)),
        (RankFailed("x"), History(errors=1)),
        (OutOfMemory("x"), History(errors=1)),
        (PortTaken("x"), History(ports=1)),
        (JobCancelled("x"), None),
        (None, None),
    ],
)
def test_each_cause_has_a_budget_of_its_own(error, history):
    assert Budget(1, 1, 1).after(error, History()) == history
    assert Budget().after(error, History()) is None


def test_a_budget_ends():
    budget = Budget(lost_hosts=2)
    once = budget.after(NodeLost("x"), History())
    assert once
    twice = budget.after(NodeLost("x"), once)
    assert twice
    assert twice.attempt == 2
    assert budget.after(NodeLost("x"), twice) is None
