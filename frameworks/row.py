"""A row of the table: one framework, how it is run here, and the value that proves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed_training.errors import TrainingError
    from distributed_training.operators.base import TrainingOperator

HOSTS, SLOTS = 2, 2
RANKS = HOSTS * SLOTS


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
