"""A row of the table: one framework, how it is run here, and the value that proves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed_training.errors import TrainingError
    from distributed_training.operators.base import TrainingOperator

RANKS = 4  # two hosts, two slots each


class WrongValue(Exception):
    """Raised when a training ended well, but not with what it should have learned."""


@dataclass(frozen=True, slots=True)
class Row:
    """One framework, run as its users run it.

    :param family: rows of a kind, for `ONLY=`; its folder has the scripts
    :param package: the distribution whose version is shown
    :param environment: the lock in `requirements/` that the hosts' Python is made from
    :param launcher: what starts the ranks, as the table shows it
    :param operator: makes the operator; called with what is the same for all rows
    :param check: returns the value that was learned, in words, from the task's result;
        raises WrongValue
    :param refusal: the error that the task must fail with, where this is what is shown
    """

    family: str
    name: str
    package: str
    environment: str
    launcher: str
    operator: Callable[..., TrainingOperator]
    check: Callable[[dict[str, Any]], str]
    refusal: type[TrainingError] | None = None


def averaged(result: dict[str, Any]) -> str:
    """Check that all ranks hold one slope, to which each one's own data alone would not lead.

    Rank r's data have the slope 2 r: ranks that train together learn the mean, 3.
    """
    slopes = result["result"]["slopes"]
    if len(slopes) != RANKS or max(abs(slope - 3.0) for slope in slopes) > 0.01:
        raise WrongValue(f"each of {RANKS} ranks should have learned 3, but they learned {slopes}")
    if len(set(slopes)) > 1:
        raise WrongValue(f"the ranks' slopes differ: {slopes}")
    return f"slope {slopes[0]:.3f} on all ranks"
