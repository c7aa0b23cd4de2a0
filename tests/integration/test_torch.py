"""Real torch on real hosts, with both launchers."""

from __future__ import annotations

import json

import pytest

from distributed_training.errors import GroupNotFormed
from tests.integration.jobs import THIEF

LAUNCHERS = pytest.mark.parametrize("launcher", ["process", "torchrun"])

REDUCE = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group(os.environ["DT_BACKEND"])
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
print(json.dumps({name: int(os.environ[name]) for name in names} | {
    "total": total.item(), "size": dist.get_world_size(), "argv": sys.argv[1:],
    "elastic": "TORCHELASTIC_RUN_ID" in os.environ,
}), flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""


def ranks_of(job):
    """Return what each rank printed as JSON."""
    assert job.error is None, job.text
    size = job.plan.world_size
    lines = [[line for line in job.of_rank(rank) if line[0] == "{"] for rank in range(size)]
    return [json.loads(line) for (line,) in lines]


@LAUNCHERS
def test_ranks_of_two_hosts_form_one_group(jobs, torch_python, launcher):
    seen = ranks_of(jobs.run(REDUCE, python=str(torch_python), launcher=launcher))
    assert {rank["total"] for rank in seen} == {1 + 2 + 3 + 4}
    assert {rank["size"] for rank in seen} == {4}
    assert [(rank["RANK"], rank["LOCAL_RANK"], rank["NODE_RANK"]) for rank in seen] == [
        (0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1),
    ]  # fmt: skip
    assert {rank["elastic"] for rank in seen} == {launcher == "torchrun"}


@LAUNCHERS
def test_uneven_hosts_form_one_group(jobs_on, fleet, torch_python, launcher):
    """Case B44."""
    listed = fleet.hosts_text(slots=2).replace("slots=2", "slots=1", 1)
    job = jobs_on(fleet, hosts=listed).run(REDUCE, python=str(torch_python), launcher=launcher)
    seen = ranks_of(job)
    assert [rank["LOCAL_WORLD_SIZE"] for rank in seen] == [1, 2, 2]
    assert [rank["LOCAL_RANK"] for rank in seen] == [0, 0, 1]
    assert {(rank["WORLD_SIZE"], rank["total"]) for rank in seen} == {(3, 6.0)}


@LAUNCHERS
def test_ranks_meet_although_no_host_knows_the_names_of_others(
    jobs_on, make_fleet, torch_python, launcher
):
    """Case B39."""
    hosts = make_fleet(2)
    for host in hosts.hosts:
        host.forget_names()
    job = jobs_on(hosts, slots=1).run(REDUCE, python=str(torch_python), launcher=launcher)
    assert {rank["total"] for rank in ranks_of(job)} == {3.0}


@LAUNCHERS
def test_an_old_script_is_told_its_local_rank(jobs, torch_python, launcher):
    job = jobs.run(
        REDUCE, python=str(torch_python), launcher=launcher, local_rank_argument="--local_rank"
    )
    assert [rank["argv"] for rank in ranks_of(job)] == [
        ["--local_rank=0"], ["--local_rank=1"], ["--local_rank=0"], ["--local_rank=1"],
    ]  # fmt: skip


def test_torchrun_outlives_the_connection_that_started_it(jobs, fleet, torch_python):
    """Case B30: torchrun ends itself on SIGHUP, which a closed connection may send."""
    script = REDUCE.replace("dist.barrier()", "import time; time.sleep(5); dist.barrier()")

    def cut(job):
        for host in fleet.hosts:
            host.drop_connections()

    job = jobs.run(script, python=str(torch_python), launcher="torchrun", when='"total"', then=cut)
    assert len(ranks_of(job)) == 4
    assert "trying again" in job.text


@LAUNCHERS
def test_a_failing_rank_is_named_whatever_launched_it(jobs, torch_python, launcher):
    # The group goes first: torch's threads may abort a Python that ends while they run.
    fails = "dist.destroy_process_group()\nif os.environ['RANK'] == '3': raise KeyError('layer')"
    script = REDUCE.replace("dist.barrier()\ndist.destroy_process_group()", fails)
    script = script.replace("os._exit(0)", "import time; time.sleep(600)")
    job = jobs.run(script, python=str(torch_python), launcher=launcher, grace_period=3.0)
    assert (job.error.rank, job.error.host, job.error.exit_code) == (3, "gpu2", 1)
    assert "KeyError: 'layer'" in job.error.message


@LAUNCHERS
def test_ranks_that_train_by_themselves_are_no_success(jobs, torch_python, launcher):
    job = jobs.run("import torch", python=str(torch_python), launcher=launcher)
    assert isinstance(job.error, GroupNotFormed), job.text
    assert "but by itself: torch.distributed formed no group" in job.error.message


@LAUNCHERS
def test_ranks_may_train_by_themselves_where_that_is_meant(jobs, torch_python, launcher):
    job = jobs.run("import torch", python=str(torch_python), launcher=launcher, check_group=False)
    assert job.error is None, job.text


@LAUNCHERS
def test_a_port_taken_between_lease_and_use_is_told_as_such(jobs, torch_python, launcher):
    """Case B41: rank 0 finds its port taken, as if somebody had been faster."""
    from distributed_training.run.verdict import is_port_taken

    setup = f'[ "$NODE_RANK" = 0 ] || exit 0\n{THIEF}'
    job = jobs.run(REDUCE, python=str(torch_python), launcher=launcher, setup=setup)
    assert is_port_taken(job.error), job.error
