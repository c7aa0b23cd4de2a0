"""Arguments as templates leave them."""

from __future__ import annotations

import pytest

from distributed_training.errors import PlanError
from distributed_training.operators.arguments import (
    argument_list,
    job_id,
    optional_seconds,
    program,
    seconds,
    switch,
    variables,
    whole_number,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, 2), ("2", 2), (" 2 ", 2), ("auto", None), ("None", None), ("", None)],
)
def test_numbers_come_through_templates(value, expected):
    assert whole_number("nnodes", value) == expected


@pytest.mark.parametrize("value", [0, -1, "two", "2.5", True])
def test_what_is_no_count_is_refused_by_name(value):
    with pytest.raises(PlanError, match="nnodes="):
        whole_number("nnodes", value)


def test_seconds_are_numbers_or_never():
    assert seconds("grace_period", "2.5") == 2.5
    assert optional_seconds("orphan_timeout", "None") is None
    for wrong in ("soon", -1, "nan", "inf"):
        with pytest.raises(PlanError, match="grace_period="):
            seconds("grace_period", wrong)


@pytest.mark.parametrize(("value", "expected"), [(True, True), ("false", False), ("True", True)])
def test_switches_come_through_templates(value, expected):
    assert switch("oversubscribe", value) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epochs": 5, "amp": True, "off": False, "none": None}, ["--epochs", "5", "--amp"]),
        ({"-n": "a b", "layers": [1, 2]}, ["-n", "a b", "--layers", "1", "2"]),
        ("--name 'a b' $HOME", ["--name", "a b", "$HOME"]),
        (["--lr", 0.1], ["--lr", "0.1"]),
    ],
    ids=["dict", "dict with short and list", "text", "list"],
)
def test_arguments_become_words(given, expected):
    assert argument_list(given) == expected


@pytest.mark.parametrize("given", [{}, {"script": "a.py", "module": "a"}])
def test_exactly_one_program_is_asked_for(given):
    every = {"script": None, "module": None, "command": None} | given
    with pytest.raises(PlanError, match="exactly one of script=, module= and command="):
        program(**every, arguments=())


def test_a_variable_without_text_is_refused_by_name():
    assert variables("env", {"N": 1, "EMPTY": ""}) == {"N": "1", "EMPTY": ""}
    with pytest.raises(PlanError, match="env: TOKEN is NoneType"):
        variables("env", {"TOKEN": None})


class TaskInstance:
    """The fields of a task instance that make up an id."""

    dag_id, task_id, run_id, map_index, try_number = "my dag", "t", "manual__2030-01-01", -1, 1
    id = "019dcf5e"


def test_a_job_id_is_the_same_for_the_same_try_and_safe_as_a_file_name():
    first, again, other = TaskInstance(), TaskInstance(), TaskInstance()
    other.map_index = 3
    assert job_id({"ti": first}) == job_id({"ti": again}) != job_id({"ti": other})
    assert job_id({"ti": first}).startswith("my-dag-t-")
    assert set(job_id({"ti": first})) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
