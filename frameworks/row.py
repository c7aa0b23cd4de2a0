"""A row of the table: one framework, how it is run here, and the value that proves it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.environments import CHECKOUT

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
    :param before: a script, by its path in the checkout, that makes what the training reads; run
        here with the row's Python, in a copy of its folder, `prepared(script)`, which is what is
        sent
    :param after: a script, by its path in the checkout, run here with the row's Python; it is told
        where the outputs are, and prints as JSON what is to be checked
    """

    family: str
    name: str
    package: str
    environment: str
    launcher: str
    operator: Callable[..., TrainingOperator]
    check: Callable[[dict[str, Any]], str]
    refusal: type[TrainingError] | None = None
    before: str | None = None
    after: str | None = None


def prepared(script: str) -> Path:
    """Return the folder, here, of what a script before a row makes, or one after it reads."""
    return CHECKOUT / "build/frameworks" / Path(script).with_suffix("")
