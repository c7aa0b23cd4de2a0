"""What of a function goes to the hosts, and what cannot go there."""

from __future__ import annotations

import functools
import linecache
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.decorators.source import source_of
from distributed_training.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

OUTSIDE = 3


def named(*_: Any) -> Callable[[Any], Any]:
    return lambda function: function


def run(function: Callable[..., Any], *arguments: Any, folder: Path) -> Any:
    """Return what a function returns where nothing is known but its text."""
    text, file = source_of(function), folder / "sent.py"
    file.write_text(text)
    names: dict[str, Any] = {"__name__": "sent"}
    exec(compile(text, file, "exec"), names)
    return names[function.__name__](*arguments)


@named(
    "several",
    "lines",
)
# and a comment
@named()
def plain(a: int, b: np.ndarray | Unknown = 2, *rest: Unknown) -> Unknown:  # type: ignore  # noqa: F821
    """Return a sum."""
    total: Unknown = a + b  # type: ignore  # noqa: F821

    def inner(x: Unknown) -> Unknown:  # type: ignore  # noqa: F821
        import math

        return math.floor(x) if x else inner(0)

    class Adder:
        offset = 1
        twice = offset * 2

        def __init__(self) -> None:
            super().__init__()

    return sum([inner(total), *(each for each in rest), Adder.twice])


def test_a_function_runs_without_its_file(tmp_path):
    assert run(plain, 1, folder=tmp_path) == 5
    assert run(plain, 1, 2, 3, 4.5, folder=tmp_path) == 12.5


def test_lines_are_those_of_the_file_it_was_written_in(tmp_path):
    @named()
    def indented():
        text = """
no indentation here
"""
        raise ValueError(text)

    with pytest.raises(ValueError, match="\nno indentation here\n") as raised:
        run(indented, folder=tmp_path)
    (*_, frame) = traceback.extract_tb(raised.value.__traceback__)
    assert "raise ValueError(text)" in linecache.getline(__file__, frame.lineno or 0)
    assert frame.line == "raise ValueError(text)"


def uses_a_global():
    return OUTSIDE + plain(1)


def uses_a_global_inside():
    return [named() for _ in range(OUTSIDE)]


def has_it_as_a_default(size=OUTSIDE):
    return size


def makes_a_global():
    global MADE
    MADE = 1  # type: ignore[name-defined]
    return MADE


def calls_itself(count):
    return calls_itself(count - 1) if count else __name__


def test_names_that_it_makes_itself_are_known(tmp_path):
    assert run(makes_a_global, folder=tmp_path) == 1
    assert run(calls_itself, 2, folder=tmp_path) == "sent"


def in_a_function():
    outer = 1

    def closure():
        return outer

    return closure


@functools.wraps(plain)
def wrapped(*arguments):
    return arguments


def replaced(*_):
    return 1


replaced.__name__ = "another"
renamed = lambda: 1  # noqa: E731
renamed.__name__ = "renamed"


def generator():
    yield 1


async def asynchronous():
    return 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (uses_a_global, "uses_a_global uses OUTSIDE, plain, which are made outside of it"),
        (uses_a_global_inside, "uses OUTSIDE, named, which are"),
        (has_it_as_a_default, "uses OUTSIDE, which is made outside of it"),
        (in_a_function(), "closure uses outer, which is"),
        (lambda: 1, "<lambda> is no function made by `def`"),
        (renamed, "renamed is no function made by `def`"),
        (functools.partial(plain, 1), "is no function made by `def`"),
        (len, "len is no function made by `def`"),
        (wrapped, "plain: another decorator below that of the task has wrapped it"),
        (replaced, "another is not what stands in its file"),
        (generator, "generator has a `yield`"),
        (asynchronous, "asynchronous is async"),
    ],
    ids=lambda value: "" if isinstance(value, str) else getattr(value, "__name__", "partial"),
)
def test_what_cannot_run_on_a_host_is_refused(function, words):
    with pytest.raises(PlanError, match=words):
        source_of(function)


def test_a_function_that_is_in_no_file_is_refused():
    names: dict[str, Any] = {}
    exec("def typed(): pass", names)
    with pytest.raises(PlanError, match="typed: its source cannot be read"):
        source_of(names["typed"])


def test_a_function_on_the_first_line_can_be_sent(tmp_path):
    file = tmp_path / "first.py"
    file.write_text("def first(): return 1\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), file, "exec"), names)
    assert run(names["first"], folder=tmp_path) == 1
