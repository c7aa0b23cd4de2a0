"""The operator on real hosts, without Airflow's processes around it."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferralError, TaskDeferred
from structlog.testing import capture_logs

from distributed_training.errors import (
    HostUnreachable,
    JobCancelled,
    JobTimeout,
    NodeLost,
    OutputMissing,
    PlanError,
    RankFailed,
)
from distributed_training.operators import life
from distributed_training.operators.torch import TorchDistributedOperator
from distributed_training.run.job import JobRef
from distributed_training.run.watch import Outcome
from tests.fleet.processes import with_environment
from tests.integration.tasks import push


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
        dag_id="d", task_id="t", run_id=f"r{time.time()}", map_index=-1, try_number=1, id="0",
        max_tries=2, start_date=None, xcom_push=push,
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
    monkeypatch.setattr(life, "WATCH_FIRST", 1.0)
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
    job = JobRef.from_dict(context["task_state_store"]["job"]["ref"]).job_id
    wait_until_gone(job)


def wait_until_gone(job: str) -> None:
    """Wait for agents to end a job by themselves."""
    until = time.monotonic() + 15
    while with_environment(f"DT_JOB_ID={job}"):
        assert time.monotonic() < until, "processes of the job are left"
        time.sleep(0.2)


def cleared(context):
    """Go on as Airflow does after a user cleared the task."""
    context["ti"].try_number += 1
    context["ti"].max_tries += 1


def test_a_cleared_task_ends_what_was_left_running_and_trains_anew(operator, context, monkeypatch):
    monkeypatch.setattr(life, "WATCH_FIRST", 1.0)
    with pytest.raises(TaskDeferred):
        operator("sleep 600", deferrable=True).execute(context)
    first = JobRef.from_dict(context["task_state_store"]["job"]["ref"]).job_id
    assert with_environment(f"DT_JOB_ID={first}")
    cleared(context)
    assert operator("true").execute(context)["job_id"] != first
    assert not with_environment(f"DT_JOB_ID={first}")


def test_a_task_whose_time_is_over_in_the_worker_ends_its_ranks(operator, context):
    """There Airflow interrupts a task by an exception of its own, in a signal handler."""

    def interrupt(*_):
        raise AirflowTaskTimeout("Timeout, PID: 1")

    before = signal.signal(signal.SIGUSR1, interrupt)
    threading.Timer(4, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        with pytest.raises(JobTimeout, match="execution_timeout was over"):
            operator("sleep 600").execute(context)
    finally:
        signal.signal(signal.SIGUSR1, before)
    job = context["task_state_store"]["job"]["ref"]["job_id"]
    assert not with_environment(f"DT_JOB_ID={job}")


def test_a_try_does_not_begin_while_a_host_cannot_say_what_runs_there(
    jobs_on, make_fleet, operator, context, monkeypatch
):
    hosts = make_fleet(2)
    jobs_on(hosts, conn_timeout=2)
    monkeypatch.setattr(life, "WATCH_FIRST", 1.0)
    with pytest.raises(TaskDeferred):
        operator("sleep 600", deferrable=True).execute(context)
    hosts["gpu2"].cut_cable()
    cleared(context)
    with pytest.raises(HostUnreachable, match=r"gpu2: job .* may still run there"):
        operator("true", hosts="gpu1").execute(context)
    context["task_state_store"]["job"]["unconfirmed"] -= 950  # orphan_timeout is over
    assert operator("true", hosts="gpu1").execute(context)["state"] == "success"


def test_a_retry_goes_on_with_the_job_that_still_runs(operator, context, monkeypatch):
    """As after a worker that died between launching and deferring."""
    monkeypatch.setattr(life, "WATCH_FIRST", 1.0)
    with pytest.raises(TaskDeferred):
        operator("sleep 6", deferrable=True).execute(context)
    first = context["task_state_store"]["job"]["ref"]["job_id"]
    context["ti"].try_number = 2
    assert operator("sleep 6").execute(context)["job_id"] == first


def test_a_retry_takes_the_result_that_was_not_handed_on(operator, context, tmp_path):
    command = "echo $DT_JOB_ID >> outputs/runs"
    with pytest.raises(OutputMissing):
        operator(command, outputs=["no"], output_dir=str(tmp_path)).execute(context)
    context["ti"].try_number = 2
    task = operator(command, outputs=["outputs/runs"], output_dir=str(tmp_path))
    result = task.execute(context)
    assert set((tmp_path / "outputs/runs").read_text().split()) == {result["job_id"]}


def test_a_result_that_was_handed_on_is_never_taken_again(operator, context):
    first = operator("true").execute(context)["job_id"]
    cleared(context)
    assert operator("true").execute(context)["job_id"] != first


def test_a_retry_of_a_job_that_failed_trains_anew(operator, context):
    with pytest.raises(RankFailed):
        operator("exit 3").execute(context)
    context["ti"].try_number = 2
    assert operator("true").execute(context)["state"] == "success"


def test_ranks_are_started_again_after_an_error_as_often_as_allowed(operator, context):
    command = '[ "$DT_ATTEMPT" = 2 ] || exit 3'
    assert operator(command, max_error_restarts="2").execute(context)["restarts"] == 2
    cleared(context)
    with pytest.raises(RankFailed):
        operator(command, max_error_restarts=1).execute(context)


def test_restarts_and_retries_go_on_from_the_newest_complete_checkpoint(operator, context):
    """Case B94: the second one was being written when its rank died."""
    command = """echo "attempt $DT_ATTEMPT resumes from ${DT_RESUME_FROM:-nothing}" >> outputs/told
[ -n "$DT_RESUME_FROM" ] && { [ "$DT_ATTEMPT" = 0 ]; exit; }
[ "$DT_ATTEMPT" = 0 ] || exit 9
mkdir -p "$DT_CHECKPOINT_DIR/checkpoint-10" "$DT_CHECKPOINT_DIR/checkpoint-20"
touch "$DT_CHECKPOINT_DIR/checkpoint-10/.complete" "$DT_CHECKPOINT_DIR/checkpoint-20/half"
exit 3"""
    folder = f"/tmp/checkpoints-{time.time_ns()}"
    fields = {"checkpoint_dir": folder, "nnodes": 1, "nproc_per_node": 1}
    with capture_logs() as logged, pytest.raises(RankFailed):
        operator(command, max_error_restarts=1, **fields).execute(context)
    told = [entry["event"] for entry in logged]
    assert f"  resuming from {folder}/checkpoint-10" in [
        line % entry["positional_args"] if "%s" in line else line
        for entry, line in zip(logged, told, strict=True)
    ]
    context["ti"].try_number = 2
    assert operator(command, **fields).execute(context)["restarts"] == 0


def test_a_spare_host_takes_the_place_of_a_lost_one(jobs_on, make_fleet, operator, context):
    hosts = make_fleet(3)
    jobs_on(hosts, conn_timeout=3)
    command = """[ "$DT_ATTEMPT" = 1 ] && exit 0
[ "$NODE_RANK" = 1 ] && echo ready > "$HOME/ready"
sleep 600"""

    def strike():
        until = time.monotonic() + 60
        while hosts["gpu2"].exec(["cat", "ready"], check=False).returncode:
            assert time.monotonic() < until, "rank 1 never started"
            time.sleep(0.5)
        hosts["gpu2"].power_cut()

    striker = threading.Thread(target=strike)
    striker.start()
    task = operator(command, nnodes=2, nproc_per_node=1, max_restarts=1, host_timeout=6)
    result = task.execute(context)
    striker.join()
    assert (result["hosts"], result["restarts"]) == (["gpu1", "gpu3"], 1)


def test_a_host_that_is_down_costs_nothing_where_the_others_are_enough(
    jobs_on, make_fleet, operator, context, capsys
):
    hosts = make_fleet(3)
    jobs_on(hosts, conn_timeout=3)
    hosts["gpu1"].power_cut()
    result = operator("true", nnodes=2, nproc_per_node=1).execute(context)
    assert result["hosts"] == ["gpu2", "gpu3"]
    assert "WARNING: not asked for any rank: cannot reach gpu1" in capsys.readouterr().out


def test_without_a_spare_host_the_loss_is_the_verdict(jobs_on, make_fleet, operator, context):
    hosts = make_fleet(2)
    jobs_on(hosts, conn_timeout=3)
    striker = threading.Timer(6, hosts["gpu2"].power_cut)
    striker.start()
    with pytest.raises(NodeLost, match="gpu2"):
        operator("sleep 600", max_restarts=1, host_timeout=6).execute(context)
    striker.join()


def test_a_trigger_that_fails_is_replaced_a_few_times(operator, context, monkeypatch):
    monkeypatch.setattr(life, "WATCH_FIRST", 1.0)
    task = operator("sleep 600", deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    failure = {"error": "Trigger failure", "traceback": ["ValueError"]}
    for _ in range(life.TRIGGER_FAILURES):
        with pytest.raises(TaskDeferred):
            task.resume_execution("__fail__", failure, context)
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", failure, context)
    assert not with_environment(f"DT_JOB_ID={context['task_state_store']['job']['ref']['job_id']}")


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
