"""What a task of Ray asks for, and what is refused before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import PlanError
from distributed_training.operators.arguments import fill_in
from distributed_training.operators.ray import RayTrainOperator
from distributed_training.plan import RayOptions

if TYPE_CHECKING:
    from distributed_training.plan import JobSpec


def asked(**fields: Any) -> JobSpec:
    """Return what a task asks for whose templates have been rendered."""
    known: dict[str, Any] = {"task_id": "t", "script": "a.py", "hosts": ["gpu1"]}
    task = RayTrainOperator(**(known | fields))
    fill_in(task, task.template_fields)
    return task.spec({}, None)


@pytest.mark.parametrize("blank", ["", "None", None])
@pytest.mark.parametrize("name", ["num_cpus", "object_store_memory"])
def test_what_a_template_left_blank_is_not_given(name: str, blank: str | None) -> None:
    assert asked(**{name: blank}).ray == RayOptions()


def test_numbers_may_come_through_templates() -> None:
    fields = {"num_cpus": "4", "object_store_memory": "100000000"}
    assert asked(**fields).ray == RayOptions(4, 100_000_000)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_cpus": 0}, "num_cpus=0 is not a whole number of at least 1"),
        ({"object_store_memory": "1GB"}, "object_store_memory='1GB' is not a whole number"),
        ({"object_store_memory": 1000}, "object_store_memory=1000 is less than Ray takes"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        asked(**fields)
