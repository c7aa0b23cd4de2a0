"""The operator on real hosts, without Airflow's processes around it."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferred

from distributed_training.errors import HostUnreachable, JobCancelled, OutputMissing, PlanError
from distributed_training.operators import base
from distributed_training.operators.torch import TorchDistributedOperator
from distributed_training.run.job import JobRef
from distributed_training.run.watch import Outcome
from tests.fleet.processes import with_environment


class Store(dict[str, Any]):
    """A task's state store."""

    def set(self, key: str, value: Any, retention: object = None) -> None:
        """Keep a value."""
        self[key] = value

    def delete(self, key: str) -> None:
        """Forget a value."""
        self.pop(key, None)


@pytest.fixture
def context() -> Any:
    """What Airflow hands to an operator."""
    ti = SimpleNamespace(
        dag_id="d", task_id="t", run_id=f"r{time.time()}", map_index=-1, try_number=1,
        start_date=None,
    )  # fmt: skip
    return {"ti": ti, "task_state_store": Store()}


@pytest.fixture
def operator(jobs, tmp_path):
    """Make operators that run a command on each slot of the shared hosts."""

    def make(command: str, **fields: Any) -> TorchDistributedOperator:
        known = {"task_id": "t", "command": command, "grace_period": 3, "deferrable": False}
        return TorchDistributedOperator(**(known | fields))

    return make


def test_a_task_returns_what_its_job_left(operator, context, tmp_path):
    command = """[ "$RANK" = 0 ] || exit 0
echo '{"accuracy": 0.97}' > "$DT_RESULT_FILE"
echo '{"epoch": 1, "loss": 0.5}' >> "$DT_METRICS_FILE"
echo '{"epoch": 2, "loss": 0.25}' >> "$DT_METRICS_FILE"
echo weights > outputs/model.pt; mkdir -p more/deep; echo x > more/deep/file"""
    task = operator(
        command,
        outputs=["outputs/model.pt", "more"],
        output_dir=str(tmp_path / "out"),
        log_dir=str(tmp_path / "logs"),
    )
    result = task.execute(context)
    assert result["state"] == "success"
    assert (result["hosts"], result["world_size"]) == (["gpu1", "gpu2"], 4)
    assert result["result"] == {"accuracy": 0.97}
    assert result["metrics"] == {"epoch": 2, "loss": 0.25}
    assert (tmp_path / "out/outputs/model.pt").read_text() == "weights\n"
    assert (tmp_path / "out/more/deep/file").read_text() == "x\n"
    assert result["outputs"]["more"].endswith("/out/more")
    logs = sorted(path.relative_to(tmp_path / "logs") for path in tmp_path.glob("logs/*/rank*"))
    assert [str(path) for path in logs] == [
        "gpu1/rank-0.log", "gpu1/rank-1.log", "gpu2/rank-2.log", "gpu2/rank-3.log",
    ]  # fmt: skip


def test_numbers_that_templates_made_strings_of_are_numbers(operator, context):
    task = operator("true", nnodes="1", nproc_per_node="2", grace_period="2.5")
    assert task.execute(context)["world_size"] == 2


def test_an_output_that_is_not_there_fails_the_task(operator, context, tmp_path):
    task = operator("true", outputs=["model.pt"], output_dir=str(tmp_path))
    with pytest.raises(OutputMissing, match=r"gpu1: .*model\.pt"):
        task.execute(context)


def test_a_result_that_is_not_json_fails_the_task(operator, context):
    with pytest.raises(OutputMissing, match=r"gpu1: .*DT_RESULT_FILE"):
        operator('echo "{" > "$DT_RESULT_FILE"').execute(context)


def test_outputs_without_a_place_are_refused_before_anything_starts(operator, context):
    with pytest.raises(PlanError, match="output_dir="):
        operator("touch /tmp/started", outputs=["model.pt"]).execute(context)


def test_a_long_job_is_handed_to_the_triggerer_and_resumed(operator, context, monkeypatch):
    monkeypatch.setattr(base, "WATCH_FIRST", 1.0)
    task = operator("sleep 3", deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    assert deferred.value.method_name == "resume"
    ref = JobRef.from_dict(deferred.value.trigger.serialize()[1]["ref"])
    assert len(ref.nodes) == 2
    time.sleep(3)
    event = Outcome(ref, None, time.time()).to_dict()
    assert task.resume(context, event)["job_id"] == ref.job_id


def test_a_short_job_never_defers(operator, context):
    assert operator("true", deferrable=True).execute(context)["state"] == "success"


def test_a_signal_to_the_worker_ends_the_job_everywhere(operator, context):
    task = operator("sleep 600")
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    timer = threading.Timer(4, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(JobCancelled):
            task.execute(context)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    job = JobRef.from_dict(context["task_state_store"]["job"]).job_id
    wait_until_gone(job)


def wait_until_gone(job: str) -> None:
    """Wait for agents to end a job by themselves."""
    until = time.monotonic() + 15
    while with_environment(f"DT_JOB_ID={job}"):
        assert time.monotonic() < until, "processes of the job are left"
        time.sleep(0.2)


def test_another_try_ends_what_the_last_one_left_running(operator, context, monkeypatch):
    monkeypatch.setattr(base, "WATCH_FIRST", 1.0)
    with pytest.raises(TaskDeferred):
        operator("sleep 600", deferrable=True).execute(context)
    first = JobRef.from_dict(context["task_state_store"]["job"]).job_id
    assert with_environment(f"DT_JOB_ID={first}")
    context["ti"].try_number = 2
    assert operator("true").execute(context)["job_id"] != first
    assert not with_environment(f"DT_JOB_ID={first}")


def test_a_try_does_not_begin_while_a_host_cannot_say_what_runs_there(
    jobs_on, make_fleet, operator, context, monkeypatch
):
    hosts = make_fleet(2)
    jobs_on(hosts, conn_timeout=2)
    monkeypatch.setattr(base, "WATCH_FIRST", 1.0)
    with pytest.raises(TaskDeferred):
        operator("sleep 600", deferrable=True).execute(context)
    hosts["gpu2"].cut_cable()
    context["ti"].try_number = 2
    with pytest.raises(HostUnreachable, match=r"gpu2: job .* may still run there"):
        operator("true").execute(context)


def test_a_trigger_that_fails_is_replaced_a_few_times(operator, context, monkeypatch):
    monkeypatch.setattr(base, "WATCH_FIRST", 1.0)
    task = operator("sleep 600", deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    failure = {"error": "Trigger failure", "traceback": ["ValueError"]}
    for _ in range(base.TRIGGER_FAILURES):
        with pytest.raises(TaskDeferred):
            task.resume_execution("__fail__", failure, context)
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", failure, context)
    assert not with_environment(f"DT_JOB_ID={context['task_state_store']['job']['job_id']}")


def test_ranks_whose_port_was_taken_are_started_once_more_with_another(operator, context):
    """Case B41."""
    command = """echo "port $MASTER_PORT"
[ "$DT_ATTEMPT" = 1 ] && exit 0
[ "$RANK" = 0 ] && echo "EADDRINUSE: address already in use" && exit 1
sleep 60"""
    assert operator(command).execute(context)["restarts"] == 1


def test_a_dry_run_returns_the_plan_and_changes_nothing(operator, fleet):
    plan = operator("true", nnodes=2).dry_run()
    assert plan.world_size == 4
    listed = fleet["gpu1"].exec(["ls", ".distributed_training/jobs"], check=False)
    assert "dry-run" not in listed.stdout
