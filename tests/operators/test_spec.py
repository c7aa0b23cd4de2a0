"""What a task asks for is read as a whole before anything is started."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import PlanError
from distributed_training.operators.arguments import fill_in
from distributed_training.operators.torch import TorchDistributedOperator

if TYPE_CHECKING:
    from distributed_training.plan import JobSpec


def asked(**fields: Any) -> JobSpec:
    """Return what a task asks for whose templates have been rendered."""
    known: dict[str, Any] = {"task_id": "t", "script": "a.py", "hosts": ["gpu1"]}
    task = TorchDistributedOperator(**(known | fields))
    fill_in(task, task.template_fields)
    with task.source() as source:
        return task.spec({}, source)


@pytest.mark.parametrize("blank", ["", " ", "None", None])
@pytest.mark.parametrize(
    "name",
    sorted(set(TorchDistributedOperator.template_fields) - {"script", "hosts", "orphan_timeout"}),
)
def test_what_a_template_left_blank_is_not_given(name: str, blank: str | None) -> None:
    assert asked(**{name: blank}) == asked()


def test_none_means_never_only_where_it_is_a_choice() -> None:
    assert asked(orphan_timeout="None").orphan_timeout is None
    assert asked(orphan_timeout="").orphan_timeout == asked().orphan_timeout == 900


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_restarts": "x"}, "max_restarts='x' is not a whole number of at least 0"),
        ({"max_error_restarts": -1}, "max_error_restarts=-1 is not a whole number of at least 0"),
        ({"max_restarts": 1.5}, "max_restarts="),
        ({"max_restarts": "auto"}, "max_restarts="),
        ({"host_timeout": 0}, "host_timeout=0 .*at least 6: .*every 5 seconds"),
        ({"start_timeout": 0}, "start_timeout=0 .*at least 1"),
        ({"hang_timeout": 0}, "hang_timeout=0 .*None is for never"),
        ({"orphan_timeout": "0"}, "orphan_timeout='0' .*None is for never"),
        ({"master_port": 65536}, "master_port=65536 is not a whole number from 1 to 65535"),
        ({"stop_signal": "SIGNOPE"}, "stop_signal='SIGNOPE' is no signal"),
        ({"backend": "ncll"}, "backend='ncll' is none of gloo, nccl, mpi, ucc, xccl"),
        ({"launcher": "slurm"}, "launcher='slurm' is none of process, torchrun"),
        ({"nnodes": "2:x"}, "nnodes='x' is not a whole number of at least 1"),
        ({"nnodes": "0:2"}, "nnodes='0' is not a whole number of at least 1"),
        ({"nnodes": "4:2"}, "nnodes='4:2' wants at least 4, and no more than 2"),
        ({"env": "x"}, "env is not a mapping"),
        ({"host_env": "x"}, "host_env is not a mapping"),
        ({"host_env": {"gpu1": "x"}}, r"host_env\['gpu1'\] is not a mapping"),
        ({"host_env": {"gpu9": {}}}, "host_env names 'gpu9', .*its hosts are gpu1"),
        ({"arguments": "a 'b"}, "arguments= cannot be split .No closing quotation"),
        ({"arguments": {"a": {"b": 1}}}, "arguments: a is a dict, which is no argument"),
        ({"log_dir": 7}, "log_dir=7 is neither a path nor a URL"),
        ({"output_dir": 7}, "output_dir=7 is neither a path nor a URL"),
        ({"arguments": 5}, "arguments=5 is neither list, text nor dict"),
        ({"hosts": 3, "script": "a.py"}, "hosts=3 is neither text nor a list"),
        ({"hosts": [None]}, r"hosts=\[None\] is neither"),
        ({"script": None, "command": 5}, "command=5 is not text"),
        ({"script": None, "command": [""]}, "begins with no program"),
        ({"script": None, "command": " "}, "exactly one of"),
        ({"source_dir": 5}, "source_dir=5 is not text"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    fields = {"host_env": {"gpu1": {}}} | fields
    with pytest.raises(PlanError, match=words):
        asked(**fields)


@pytest.mark.parametrize("value", ["SIGINT", "int", " INT ", 2, "2"])
def test_a_signal_is_known_by_any_of_its_names(value: str | int) -> None:
    assert asked(stop_signal=value).stop_signal == "SIGINT"


def test_nodes_may_have_a_least_and_a_most() -> None:
    spec = asked(nnodes=" 2:4 ", max_restarts="3")
    assert (spec.min_nodes, spec.nnodes, spec.max_restarts) == (2, 4, 3)
    assert asked(nnodes="2").min_nodes is None


def test_a_backend_may_be_given_for_each_device() -> None:
    assert asked(backend="cpu:gloo,cuda:NCCL").backend == "cpu:gloo,cuda:nccl"


def test_what_the_connection_says_of_housekeeping_goes_for_its_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = {"hosts": "gpu1", "quarantine": "600", "disk_cap": 50}
    connection = json.dumps({"conn_type": "gpu_fleet", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", connection)
    spec = asked(fleet_conn_id="gpus", keep_days=2)
    assert (spec.quarantine, spec.disk_cap, spec.keep_days) == (600, 50e9, 2)


def test_variables_of_a_host_may_be_none_and_arguments_any_keys() -> None:
    spec = asked(host_env={"gpu1": None}, arguments={1: 2})
    assert spec.host_env == {"gpu1": {}}
    assert spec.program.arguments == ("--1", "2")
