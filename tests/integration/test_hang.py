"""Jobs that stand still on real hosts: who is named, and who is left in peace."""

from __future__ import annotations

import pytest

from distributed_training.errors import JobStalled
from tests.fleet.processes import with_environment

LAUNCHERS = pytest.mark.parametrize("launcher", ["process", "torchrun"])

# Joining takes a while on a busy machine; a rank that says so is not silent.
DEADLOCK = """
import os, threading, time

joined = threading.Event()

def loading():
    while not joined.wait(1):
        print("loading", flush=True)

threading.Thread(target=loading, daemon=True).start()

import torch, torch.distributed as dist

def late():
    time.sleep(600)

def step():
    dist.all_reduce(torch.ones(1))

dist.init_process_group("gloo")
dist.barrier()
joined.set()
late() if dist.get_rank() == 2 else step()
"""
SLEEP_IN_LATE = 1 + DEADLOCK[: DEADLOCK.index("time.sleep")].count("\n")
ALL_REDUCE = 1 + DEADLOCK[: DEADLOCK.index("dist.all_reduce")].count("\n")


@LAUNCHERS
def test_a_rank_that_never_joins_a_collective_is_named_with_its_line(jobs, torch_python, launcher):
    job = jobs.run(DEADLOCK, python=str(torch_python), launcher=launcher, hang_timeout=8.0)
    error = job.error
    assert isinstance(error, JobStalled), job.text
    assert (error.rank, error.host) == (2, "gpu2")
    assert f"at train.py:{SLEEP_IN_LATE} in late" in error.message
    assert f"ranks 0, 1, 3 on gpu1, gpu2: at train.py:{ALL_REDUCE} in step" in error.message
    assert error.log_tail[0] == f"train.py:{SLEEP_IN_LATE} in late"
    assert "in all_reduce" in job.text
    assert not with_environment(f"DT_JOB_ID={job.plan.spec.job_id}")


def test_a_silent_rank_that_notes_metrics_is_left_alone(jobs):
    script = """
import os, time
for step in range(12):
    with open(os.environ["DT_METRICS_FILE"], "a") as file:
        file.write('{"step": %d}\\n' % step)
    time.sleep(1)
"""
    job = jobs.run(script, nproc_per_node=1, hang_timeout=6.0, check_group=False)
    assert job.error is None, job.text
    assert not job.lines


def test_a_rank_that_left_while_others_wait_for_it_is_named(jobs):
    script = """
import os, time
def wait_for_others():
    time.sleep(600)
if os.environ["RANK"] != "1":
    wait_for_others()
"""
    job = jobs.run(script, hang_timeout=5.0)
    assert (job.error.rank, job.error.host) == (1, "gpu1")
    assert "rank 1 on gpu1 stands elsewhere than the others: ended before" in job.error.message
    assert "in wait_for_others" in job.error.message


def test_a_parameter_server_that_is_dead_to_its_workers_is_named(jobs):
    script = """
import os, signal, socket, time

def ask():
    while True:
        try:
            socket.create_connection(server).recv(1)
        except ConnectionRefusedError:
            time.sleep(0.1)

server = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    listener = socket.create_server(server)
    os.kill(os.getpid(), signal.SIGSTOP)
ask()
"""
    job = jobs.run(script, hang_timeout=5.0, grace_period=1.0)
    assert (job.error.rank, job.error.host) == (0, "gpu1"), job.text
    assert "is held by a signal or a debugger" in job.error.message
    assert "ranks 1, 2, 3 on gpu1, gpu2: at train.py:7 in ask" in job.error.message
    assert not with_environment(f"DT_JOB_ID={job.plan.spec.job_id}")


def test_a_host_that_cannot_be_asked_is_told_and_the_job_is_ended(jobs_on, make_fleet):
    hosts = make_fleet(2)

    def break_next_call(job):
        hosts["gpu2"].write_file(".bashrc", "rm .bashrc; echo no memory >&2; exit 1\n")

    script = "import time; print('here', flush=True); time.sleep(600)"
    job = jobs_on(hosts, slots=1).run(script, when="here", then=break_next_call, hang_timeout=6.0)
    assert isinstance(job.error, JobStalled), job.text
    assert "no stacks of gpu2" in job.error.message
    assert "no memory" in job.error.message


def test_nothing_of_ours_runs_in_a_rank_that_is_not_to_be_looked_at(jobs):
    script = "import os, time; time.sleep(3); print('PYTHONPATH' in os.environ)"
    job = jobs.run(script, nproc_per_node=1, check_group=False)
    assert job.plan.spec.hang_timeout is None
    assert job.of_rank(0) == ["False"]
