"""`ps`, `logs` and `stop` beside jobs that run on real hosts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from distributed_training.errors import JobCancelled
from tests.fleet.processes import with_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Done

WAIT = "import time; print('on', flush=True); time.sleep(600)"


def beside(jobs, action: Callable[[str], Done], script: str = WAIT, **fields):
    """Run a job, and act with its id while it runs."""
    done: list[Done] = []

    def act(job) -> None:
        done.append(action(job.plan.spec.job_id))

    job = jobs.run(script, when="on", then=act, **fields)
    return job, done[0]


def test_jobs_are_listed_with_whom_they_are_for(jobs, shell):
    label = {"dag": "retrain", "task": "train", "run": "r1", "map_index": "-1", "try": "2"}
    listed: list[Done] = []

    def act(job: str) -> Done:
        listed.append(shell("ps"))
        listed.append(shell("ps", "--json", "--hosts", "gpu2"))
        return shell("stop", job)

    job, _ = beside(jobs, act, label=label)
    lines = [line.split() for line in listed[0].out.splitlines()]
    own = [line for line in lines if line[0] == job.plan.spec.job_id]
    assert [line[2:4] for line in own] == [["gpu1", "running"], ["gpu2", "running"]]
    assert all("retrain.train r1 try 2" in " ".join(line) for line in own)
    assert [line[-3:-1] for line in own] == [["1", own[0][-2]], ["1", own[1][-2]]]
    (node,) = [n for n in json.loads(listed[1].out) if n["job"] == job.plan.spec.job_id]
    assert (node["host"], node["slots"], node["survivors"]) == ("gpu2", ["cpu-0"], 1)


def test_stop_ends_a_job_and_confirms_it(jobs, shell):
    job, done = beside(jobs, lambda job: shell("stop", job))
    assert done.status == 0
    lines = sorted(line.partition(" on ")[2] for line in done.out.splitlines())
    assert lines == ["gpu1: ended, 0 processes left", "gpu2: ended, 0 processes left"]
    assert not with_environment(f"DT_JOB_ID={job.plan.spec.job_id}")
    assert isinstance(job.error, JobCancelled)
    assert "by " in job.error.message
    assert shell("stop", job.plan.spec.job_id).out == "nothing of it runs any more\n"


def test_stop_names_the_hosts_that_did_not_confirm(jobs_on, make_fleet, shell):
    """Case B31."""
    hosts = make_fleet(2)
    jobs = jobs_on(hosts, slots=1, conn_timeout=2)

    def act(job: str) -> Done:
        hosts["gpu2"].cut_cable()
        done = shell("stop", "--all")
        hosts["gpu2"].plug_cable()
        return done

    _, done = beside(jobs, act, host_timeout=5.0)
    assert done.status == 1
    assert "not confirmed stopped: gpu2" in done.err.splitlines()
    assert "on gpu1: ended, 0 processes left" in done.out


def test_logs_are_told_by_rank_and_time(jobs, shell):
    script = "import os, time; time.sleep(int(os.environ['RANK'])); print('on', os.environ['RANK'])"
    job = jobs.run(script)
    name = job.plan.spec.job_id
    done = shell("logs", name)
    ranks = [line for line in done.out.splitlines() if line.startswith("[rank")]
    assert ranks == ["[rank 0 gpu1] on 0", "[rank 1 gpu2] on 1"]
    assert shell("logs", name, "--rank", "1").out == "[rank 1 gpu2] on 1\n"
    none = shell("logs", name, "--rank", "9")
    assert (none.status, none.out) == (2, "")
    assert "has no rank 9 on these hosts: 0, 1" in none.err
    assert name in shell("ps", "--all").out
    assert name not in shell("ps").out


def test_followed_logs_end_with_the_job(jobs, shell):
    script = """
import os, time
print("on", flush=True)
for n in range(20):
    print("line", n, flush=True)
    time.sleep(0.1)
"""
    _, done = beside(jobs, lambda job: shell("logs", job, "--follow", "--rank", "0"), script)
    assert done.out.splitlines()[1:] == [f"[rank 0 gpu1] line {n}" for n in range(20)]


def test_an_unknown_job_is_told_with_those_there_are(jobs, shell):
    known = jobs.run("pass").plan.spec.job_id
    for verb in ("logs", "stop"):
        done = shell(verb, "no-such-job")
        assert done.status == 2
        assert "no host has a job 'no-such-job'" in done.err
        assert known in done.err


def test_hosts_that_do_not_answer_are_named(jobs_on, make_fleet, shell):
    hosts = make_fleet(2)
    jobs_on(hosts, slots=1, conn_timeout=2)
    hosts["gpu2"].power_cut()
    done = shell("ps")
    assert done.status == 1
    assert done.out.splitlines()[-1] == "no job runs on gpu1"
    assert "gpu2" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ps", "--conn-id", "nix"], "there is no connection 'nix'"),
        (["ps", "--hostfile", "/no/file"], "cannot read the hostfile"),
        (["ps", "--hosts", "gpu9"], "has no host 'gpu9'"),
        (["ps", "--user", "ada"], "--user, --key-file, --port and --work-dir go with --hostfile"),
        (["stop"], "one of the arguments job --all is required"),
        (["dance"], "invalid choice: 'dance'"),
    ],
)
def test_what_cannot_be_right_is_told_without_a_traceback(jobs, shell, words, told):
    done = shell(*words)
    assert done.status == 2
    assert told in done.err
    assert "Traceback" not in done.err
