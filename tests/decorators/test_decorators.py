"""Functions as tasks: what is asked for, and what is refused before anything is started."""

from __future__ import annotations

import json
import tarfile
from datetime import date
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.definitions.mappedoperator import MappedOperator

from distributed_training.decorators.base import LIMIT
from distributed_training.decorators.jax import JaxFunctionOperator
from distributed_training.decorators.mpi import MpiFunctionOperator
from distributed_training.decorators.tensorflow import TensorFlowFunctionOperator
from distributed_training.decorators.torch import TorchFunctionOperator
from distributed_training.errors import PlanError
from distributed_training.launchers import plan
from distributed_training.operators.arguments import fill_in
from tests.offers import offer

CONTEXT: Any = {"ds": "2026-01-01", "run_id": "manual", "params": {"lr": 0.1}}


def train(lr, *layers, epochs=1, run_id=None, params=None, **more):
    return lr


def made(operator, function=train, args=(0.1,), **fields):
    """Return the task that a call of a function makes."""
    decorated: Any = operator(**{"hosts": ["gpu1"]} | fields)(function)
    with DAG("d"):
        return decorated(*args).operator


def asked(task_, context=CONTEXT):
    fill_in(task_, task_.template_fields)
    with task_.source() as source:
        return task_.spec(context, source)


def call(task_, context=CONTEXT):
    return json.loads(asked(task_, context).program.values)


@pytest.mark.parametrize(
    ("operator", "kind", "launcher", "fields"),
    [
        (task.torch_distributed, TorchFunctionOperator, "torchrun", {"launcher": "torchrun"}),
        (task.mpi, MpiFunctionOperator, "mpi", {"mpi": "mpich"}),
        (task.tf_multiworker, TensorFlowFunctionOperator, "tensorflow", {"worker_count": 2}),
        (task.jax_distributed, JaxFunctionOperator, "jax", {}),
    ],
)
def test_airflow_knows_the_decorators(operator, kind, launcher, fields):
    made_ = made(operator, **fields)
    assert type(made_) is kind
    assert {"op_args", "op_kwargs", "nnodes", *fields} <= set(kind.template_fields)
    spec = asked(made_)
    assert (spec.launcher, made_.task_id) == (launcher, "train")
    assert (spec.program.value, spec.program.arguments) == ("dt_function", ("train",))


def test_arguments_reach_a_rank_in_its_environment_alone():
    spec = asked(made(task.torch_distributed, args=("s3cret", 2)))
    (process,) = plan(spec, [offer(slots=1)]).head.processes
    assert json.loads(process.env["DT_ARGUMENTS"])["args"] == ["s3cret", 2]
    assert "s3cret" not in repr(spec) + repr(process)


def test_parameters_may_be_parts_of_airflows_context():
    task_ = made(task.torch_distributed)
    kwargs = {"run_id": "manual", "params": {"lr": 0.1}}
    assert call(task_) == {"args": [0.1], "kwargs": kwargs, "multiple_outputs": False}
    assert call(task_, {})["kwargs"] == {"run_id": None, "params": None}  # a dry run
    task_.op_kwargs = {"run_id": "mine"}
    assert call(task_)["kwargs"]["run_id"] == "mine"


def test_a_function_may_be_called_again_and_otherwise():
    with DAG("d") as dag:
        decorated: Any = task.torch_distributed(hosts="gpu1", nnodes=1)(train)
        first, second = decorated(1).operator, decorated.override(nnodes=2)(2).operator
        mapped = decorated.partial(epochs=3).expand(lr=[1, 2]).operator
    assert [each.task_id for each in (first, second, mapped)] == ["train", "train__1", "train__2"]
    assert (asked(first).nnodes, asked(second).nnodes) == (1, 2)
    assert isinstance(mapped, MappedOperator)
    unmapped = mapped.unmap({"op_kwargs": {"lr": 2}})
    assert call(unmapped, {})["kwargs"] == {"lr": 2, "epochs": 3, "run_id": None, "params": None}
    assert dag.task_ids == ["train", "train__1", "train__2"]


def test_several_outputs_are_known_by_the_annotation():
    def several() -> dict:
        return {}

    assert call(made(task.mpi, several, ()))["multiple_outputs"] is True


def live(macros):
    return macros


@pytest.mark.parametrize(
    ("task_", "words"),
    [
        (made(task.mpi, args=(date(2026, 1, 1),)), r"train .*op_args\[0\] is datetime.date, .*day"),
        (made(task.mpi, live, ()), "live cannot be called: macros is object"),
        (made(task.mpi, args=("x" * LIMIT,)), f"bytes as JSON, and {LIMIT} can be handed"),
        (made(task.mpi, command="hostname"), "command= has no meaning where ranks run a function"),
        (made(task.mpi, arguments=["--x"]), "arguments= has no meaning"),
        (made(task.torch_distributed, local_rank_argument="--r"), "local_rank_argument= has no"),
    ],
    ids=["argument", "context", "size", "program", "arguments", "local rank"],
)
def test_what_cannot_be_is_refused(task_, words):
    with pytest.raises(PlanError, match=words):
        asked(task_, CONTEXT | {"macros": object()})


def test_a_function_that_cannot_be_sent_is_refused_when_its_dag_is_read():
    with pytest.raises(PlanError, match="uses CONTEXT, which is made outside of it"):
        made(task.mpi, lives_on_its_file, ())


def lives_on_its_file():
    return CONTEXT


def test_the_function_is_beside_the_source(tmp_path):
    (tmp_path / "model.py").write_text("size = 3\n")
    task_ = made(task.mpi, source_dir=str(tmp_path))
    with task_.source() as source, tarfile.open(fileobj=source.tar) as tar:
        names = tar.getnames()
    package = {"dt_function", *(f"dt_function/{n}.py" for n in ("__init__", "__main__", "train"))}
    assert set(names) == {"model.py", *package}
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_a_name_that_both_have_is_refused(tmp_path):
    (tmp_path / "dt_function").mkdir()
    task_ = made(task.mpi, source_dir=str(tmp_path))
    with pytest.raises(PlanError, match="dt_function has the name of what"), task_.source():
        pass


def test_secret_arguments_are_masked():
    task_ = made(task.mpi, args=("x",))
    task_.op_kwargs = {"password": "hunter2"}
    assert "hunter2" in task_.secrets()


def test_the_task_returns_what_rank_0_returns():
    left = {"job_id": "j", "result": [1], "outputs": {}}
    returned = made(task.mpi).returns(left)
    assert returned == {"job": {"job_id": "j", "outputs": {}}, "return_value": [1]}
