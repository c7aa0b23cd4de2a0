"""What a task brings back and returns, and how it says that it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from distributed_training.errors import DeliveryFailed, OutputMissing, PlanError, RankFailed
from tests.integration.tasks import Task, push

SMALL = {"nnodes": 1, "nproc_per_node": 1, "deferrable": False}


@pytest.fixture
def task(jobs, tmp_path):
    """Make tasks of one rank that bring outputs to a temporary folder."""

    def make(command: str, *outputs: Any, **fields: Any) -> Task:
        brought = {"outputs": list(outputs), "output_dir": str(tmp_path / "out")} if outputs else {}
        return Task(command, **(SMALL | brought | fields))

    return make


def retried(task: Task, **fields: Any) -> dict[str, Any]:
    """Return what the next try of a task returns."""
    again = Task(**(task.fields | fields))
    again.context = task.context
    again.context["ti"].try_number += 1
    return again.run()


def told(logged: Any) -> str:
    """Return the warnings of a log."""
    lines = [entry for entry in logged if entry["log_level"] == "warning"]
    return "\n".join(each["event"] % each.get("positional_args", ()) for each in lines)


def test_numbers_that_json_lacks_are_null_and_named(task):
    result = """echo '{"a": [1, NaN], "b": {"c": -Infinity}, "d": 1e999}' > "$DT_RESULT_FILE"
echo '{"loss": NaN, "lr": 0.1}' > "$DT_METRICS_FILE" """
    with capture_logs() as logged:
        returned = task(result).run()
    assert returned["result"] == {"a": [1, None], "b": {"c": None}, "d": None}
    assert returned["metrics"] == {"loss": None, "lr": 0.1}
    for name in ("result.a[1]=nan", "result.b.c=-inf", "result.d=inf", "loss=nan"):
        assert f"gpu1: {name} is no number in JSON" in told(logged)


def test_a_result_that_airflow_did_not_take_is_handed_on_by_a_retry(task):
    first = task('echo \\"$DT_JOB_ID\\" > "$DT_RESULT_FILE"')

    def refuse(key: str, value: Any) -> None:
        raise RuntimeError("the API server is down")

    first.context["ti"].max_tries = 1
    first.context["ti"].xcom_push = refuse
    with pytest.raises(DeliveryFailed, match="API server is down"):
        first.run()
    first.context["ti"].xcom_push = push
    returned = retried(first)
    assert returned["result"] == returned["job_id"]
    assert first.context["task_state_store"]["job"]["phase"] == "delivered"


def test_a_result_that_is_too_large_says_so_and_what_to_do(task):
    with pytest.raises(OutputMissing, match=r"has 2000000 bytes, the limit is 1048576; .*outputs="):
        task('head -c 2000000 /dev/zero > "$DT_RESULT_FILE"').run()


@pytest.mark.parametrize("make", [": >", "mkdir", "mkfifo"], ids=["empty", "folder", "pipe"])
def test_a_result_file_without_a_result_is_warned_of(task, make):
    with capture_logs() as logged:
        assert task(f'{make} "$DT_RESULT_FILE"').run()["result"] is None
    assert "gpu1: $DT_RESULT_FILE" in told(logged)


def test_a_text_is_one_path(task, tmp_path):
    name = "outputs/model.npz"
    returned = task(f"echo w > {name}", outputs=name, output_dir=str(tmp_path / "out")).run()
    assert returned["outputs"] == {name: str(tmp_path / "out" / name)}
    assert (tmp_path / "out" / name).read_text() == "w\n"


@pytest.mark.parametrize(
    "outputs", [[""], "/", ".", "a/../b", "../logs", "/*", "//", [1], {"a": "b"}, 7, ["ok", "./"]]
)
def test_what_cannot_be_an_output_is_refused_before_anything_starts(task, tmp_path, outputs):
    with pytest.raises(PlanError, match="outputs="):
        task("true", outputs=outputs, output_dir=str(tmp_path)).run()


def test_each_match_and_each_path_has_a_place_of_its_own(task, tmp_path):
    command = "touch m-1.npz m-2.npz; mkdir -p deep/empty; ln m-1.npz m-3.npz"
    returned = task(command, "m-*.npz", "./deep/", "/etc/host*name").run()
    out = tmp_path / "out"
    assert returned["outputs"] == {
        "m-1.npz": str(out / "m-1.npz"),
        "m-2.npz": str(out / "m-2.npz"),
        "m-3.npz": str(out / "m-3.npz"),
        "./deep/": str(out / "deep"),
        "/etc/hostname": str(out / "etc/hostname"),
    }
    assert all(Path(path).exists() for path in returned["outputs"].values())


def test_links_bring_what_they_point_to(task, tmp_path):
    command = """mkdir -p outputs/step-2; echo far > far; echo 2 > outputs/step-2/w
ln -s ../far outputs/near; ln -s step-2 outputs/latest; ln -s .. outputs/step-2/up"""
    task(command, "outputs").run()
    files = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("out/**/*") if p.is_file()]
    assert sorted(files) == [f"out/outputs/{name}" for name in ("latest/w", "near", "step-2/w")]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("true", r"outputs/x: No such file"),
        ("touch outputs/x; chmod 0 outputs/x", r"outputs/x: Permission denied"),
        ("mkdir outputs/x; touch outputs/x/y; chmod 0 outputs/x/y", r"x/y: Permission denied"),
        ("mkdir -m 0 outputs/x", r"outputs/x: Permission denied"),
        ("mkfifo outputs/x", r"outputs/x: it is neither a file nor a folder"),
        ("ln -s nowhere outputs/x", r"outputs/x: a link to nowhere: No such file"),
        ("mkdir outputs/x; ln -s nowhere outputs/x/y", r"x/y: a link to nowhere: No such file"),
    ],
)
def test_an_output_that_cannot_be_had_is_named_and_the_others_come(task, tmp_path, command, why):
    with pytest.raises(OutputMissing, match=f"gpu1: .*{why}"):
        task(f"touch outputs/good; {command}", "outputs/x", "outputs/good").run()
    assert (tmp_path / "out/outputs/good").exists()


@pytest.mark.parametrize("log_dir", ["/etc/passwd/logs", "foo://x"])
def test_logs_that_have_no_place_are_warned_of_and_decide_nothing(task, log_dir):
    with capture_logs() as logged:
        assert task("true", log_dir=log_dir).run()["state"] == "success"
    assert f"log_dir={log_dir}" in told(logged)
    with pytest.raises(RankFailed):
        task("exit 3", log_dir=log_dir).run()


@pytest.mark.parametrize("output_dir", ["/etc/passwd/out", "foo://x", "/proc/out", "s3://bucket/k"])
def test_a_place_that_takes_no_outputs_is_refused_before_anything_starts(task, output_dir):
    with pytest.raises(PlanError, match=f"output_dir='{output_dir}' .* name a folder"):
        task("true", "outputs", output_dir=output_dir).run()


def test_a_place_that_was_lost_meanwhile_can_be_made_good_by_a_retry(task, tmp_path):
    first = task("echo $DT_JOB_ID > outputs/job", "outputs/job")
    first.context["ti"].max_tries = 1
    (tmp_path / "out/outputs").parent.mkdir()
    (tmp_path / "out/outputs").write_text("in the way")
    with pytest.raises(DeliveryFailed, match="A retry brings"):
        first.run()
    returned = retried(first, output_dir=str(tmp_path / "other"))
    assert (tmp_path / "other/outputs/job").read_text().strip() == returned["job_id"]
