"""What a TensorFlow task asks for, and what is refused before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.cluster import Cluster
from distributed_training.errors import PlanError
from distributed_training.operators.arguments import fill_in
from distributed_training.operators.tensorflow import TFMultiWorkerOperator

if TYPE_CHECKING:
    from distributed_training.plan import JobSpec

CHOICES = sorted(
    {*TFMultiWorkerOperator.template_fields} - {"script", "hosts", "orphan_timeout", "worker_count"}
)


def asked(**fields: Any) -> JobSpec:
    """Return what a task asks for whose templates have been rendered."""
    known: dict[str, Any] = {"task_id": "t", "script": "a.py", "hosts": ["gpu1"], "worker_count": 1}
    task = TFMultiWorkerOperator(**(known | fields))
    fill_in(task, task.template_fields)
    return task.spec({}, None)


@pytest.mark.parametrize("blank", ["", "None", None])
@pytest.mark.parametrize("name", CHOICES)
def test_what_a_template_left_blank_is_not_given(name: str, blank: str | None) -> None:
    assert asked(**{name: blank}) == asked()


def test_counts_may_come_through_templates() -> None:
    fields = {
        "worker_count": "2",
        "parameter_server_count": "1",
        "chief": "true",
        "evaluator_count": " 1 ",
        "placement": "round_robin",
        "slots_per_worker": "4",
        "evaluator_timeout": "1.5",
        "bypass_proxies": "False",
    }
    assert asked(**fields).cluster == Cluster(2, 1, True, 1, "round_robin", 4, 1.5, False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"worker_count": 0, "chief": True, "parameter_server_count": 1}, "worker_count=0 is not"),
        ({"worker_count": ""}, "worker_count= is not given; a cluster has at least one worker"),
        ({"parameter_server_count": -1}, "parameter_server_count=-1 is not a whole number"),
        ({"chief": "master"}, "chief='master' is neither True nor False"),
        ({"evaluator_count": 0.5}, "evaluator_count=0.5 is not a whole number"),
        ({"placement": "slot"}, "placement='slot' is none of slots, round_robin"),
        ({"slots_per_worker": 0}, "slots_per_worker=0 is not a whole number of at least 1"),
        ({"evaluator_timeout": -1}, "evaluator_timeout=-1 is not a number of seconds"),
        ({"nproc_per_node": 2}, "nproc_per_node=2 has no meaning .* worker_count="),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    """Case B80, too: a chief with parameter servers and nobody to work."""
    with pytest.raises(PlanError, match=words):
        asked(**fields)
