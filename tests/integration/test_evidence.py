"""The cause of a failure on real hosts: memory, GPUs, torch's own words, and not the symptom."""

from __future__ import annotations

import pytest

from distributed_training.errors import GpuFault, OutOfMemory, RankFailed
from tests.cgroup import VERSION_1, memory_limit

LAUNCHERS = pytest.mark.parametrize("launcher", ["process", "torchrun"])
EVENTS = "low 0\nhigh 0\nmax 7\noom 1\noom_kill {}\noom_group_kill 0\n"
JOINED = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
"""


def test_memory_that_runs_out_in_the_cgroup_of_the_host_is_the_verdict(jobs_on, make_fleet):
    """Case B32: from inside the host, processes of the kernel's log bear other numbers."""
    hosts = make_fleet(1)
    own = [
        "mkdir -p /sys/fs/cgroup/memory",
        "mount -t cgroup -o memory memory /sys/fs/cgroup/memory",
    ]
    if not VERSION_1.is_dir():
        own = ["umount /sys/fs/cgroup", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"]
    hosts["gpu1"].exec(["sh", "-ec", "; ".join(own)], user="root")
    with memory_limit(256) as cgroup:
        for process in hosts["gpu1"].processes():
            (cgroup / "cgroup.procs").write_text(str(process.outside))
        job = jobs_on(hosts, slots=1).run("print('epoch 1')\nx = b'x' * (900 << 20)")
        hosts.down()  # the cgroup goes when nobody is in it
    assert isinstance(job.error, OutOfMemory)
    assert (job.error.host, job.error.rank, job.error.signal) == ("gpu1", 0, "SIGKILL")
    assert "the memory limit is 256 MiB" in job.error.message
    assert "  epoch 1" in job.error.message


def test_memory_that_runs_out_is_found_where_cgroups_are_of_version_2(jobs_on, make_fleet):
    """This kernel may count memory in version 1: the files of version 2 are written by hand."""
    hosts = make_fleet(1)
    gpu1 = hosts["gpu1"]
    for name, value in {"events": EVENTS.format(0), "max": "268435456", "peak": "1048576"}.items():
        gpu1.write_file(f"/sys/fs/cgroup/memory.{name}", value, user="root")

    def run_out(job):
        gpu1.write_file("/sys/fs/cgroup/memory.events", EVENTS.format(1), user="root")
        gpu1.write_file("go", "")

    script = """
import os, pathlib, time
print("waiting", flush=True)
while not (pathlib.Path.home() / "go").exists(): time.sleep(0.05)
os.kill(os.getpid(), 9)
"""
    job = jobs_on(hosts, slots=1).run(script, when="waiting", then=run_out)
    assert isinstance(job.error, OutOfMemory)
    told = "the memory limit is 256 MiB (cgroup /sys/fs/cgroup), of which up to 1 MiB were used"
    assert told in job.error.message


SMI = """#!/bin/sh
case $1 in
--query-gpu=uuid,ecc*) echo "GPU-a, $(cat ~/errors 2>/dev/null || echo 0)" ;;
--query-gpu=uuid,pci.bus_id) echo "GPU-a, 00000000:65:00.0" ;;
--query-gpu=uuid,index*) echo "GPU-a, 0, NVIDIA Test, 81559" ;;
--query-remapped*) touch ~/asked ;;
esac
"""
WAITING = """
import pathlib, time
for name in ("asked", "errors"):
    while not (pathlib.Path.home() / name).exists(): time.sleep(0.05)
    print("waited for", name, flush=True)
raise RuntimeError("CUDA error: unspecified launch failure")
"""


def test_a_gpu_that_broke_under_its_rank_is_the_verdict(jobs_on, make_fleet):
    hosts = make_fleet(1)
    hosts["gpu1"].write_file("bin/nvidia-smi", SMI, mode=0o755)
    hosts["gpu1"].write_file(".bashrc", "export PATH=$HOME/bin:$PATH\n")

    def break_gpu(job):
        hosts["gpu1"].write_file("errors", "2")

    job = jobs_on(hosts, slots=1).run(WAITING, when="for asked", then=break_gpu)
    assert isinstance(job.error, GpuFault)
    assert "GPUs of gpu1 report:\n  GPU-a: uncorrected ECC errors: 2" in job.error.message
    assert "RuntimeError: CUDA error" in job.error.message


@LAUNCHERS
def test_the_rank_that_died_is_named_and_not_those_that_missed_it(jobs, torch_python, launcher):
    """Case B32: with gloo, all others see their connections closed and fail by themselves."""
    script = (
        JOINED
        + """
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1))
"""
    )
    job = jobs.run(script, python=str(torch_python), launcher=launcher)
    assert (job.error.rank, job.error.host, job.error.signal) == (3, "gpu2", "SIGKILL")


@LAUNCHERS
def test_a_rank_that_takes_long_to_fail_is_named_and_not_those_that_were_faster(
    jobs, torch_python, launcher
):
    """It has left the group when it is asked to end, because the others have missed it."""
    script = (
        JOINED
        + """
import traceback
try:
    if rank == 3:
        raise ValueError("lr")
    dist.all_reduce(torch.ones(1))
except ValueError:
    traceback.print_exc()
    dist.destroy_process_group()
    time.sleep(600)
"""
    )
    job = jobs.run(script, python=str(torch_python), launcher=launcher)
    assert (job.error.rank, job.error.host) == (3, "gpu2")
    assert "ValueError: lr" in job.error.message


@LAUNCHERS
def test_the_words_of_torchs_error_file_are_told(jobs, torch_python, launcher):
    script = (
        JOINED
        + """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if rank == 1:
        raise KeyError("layer")
    time.sleep(600)
try:
    main()
except KeyError:
    print("noise\\n" * 99)
    sys.exit(1)
"""
    )
    job = jobs.run(script, python=str(torch_python), launcher=launcher, grace_period=3.0)
    assert isinstance(job.error, RankFailed)
    assert job.error.rank == 1
    assert "KeyError: 'layer'" in job.error.message
    assert job.error.message.index("Traceback") < job.error.message.index("noise")


@LAUNCHERS
def test_a_value_reaches_every_rank_byte_for_byte(jobs, torch_python, launcher):
    """Case B57."""
    env = {"MONTHS": "01 02  03", "MSG": "a\nb", "EMPTY": "", "QUOTED": "'\"$HOME=`id`^\\"}
    script = "import os\nprint([os.environ[n] for n in ('MONTHS', 'MSG', 'EMPTY', 'QUOTED')])"
    job = jobs.run(script, python=str(torch_python), launcher=launcher, env=env)
    assert job.error is None
    assert [job.of_rank(rank) for rank in range(4)] == [[str(list(env.values()))]] * 4


def test_a_secret_is_masked_on_its_way_from_the_host(jobs):
    """Case B98."""
    script = "import os\nprint(os.environ['HF_TOKEN'])\nraise ValueError(os.environ['HF_TOKEN'])"
    job = jobs.run(script, env={"HF_TOKEN": "hf_s3cr3t"}, secrets=("hf_s3cr3t",))
    assert "ValueError: ***" in job.error.message
    assert "s3cr3t" not in job.text + job.error.message + str(job.error.log_tail)
