"""Real JAX on real hosts: its processes find each other, and each other's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.setup import hosts_python
from distributed_training.errors import GroupNotFormed
from distributed_training.run.verdict import is_port_taken
from tests.integration.jobs import THIEF, digits

TRAIN = Path(__file__).parents[2] / "dags/train_jax/train.py"
NOWHERE = "http://127.0.0.1:9"
JOIN = """
import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
ids = multihost_utils.process_allgather(jax.numpy.array(jax.process_index()))
print("process", jax.process_index(), "of", jax.process_count(), "met", sorted(map(int, ids)))
"""


@pytest.fixture(scope="session")
def python():
    """The Python of an environment with JAX that the hosts' users can run."""
    return str(hosts_python("jax"))


def run(jobs, script, python, **fields):
    return jobs.run(script, launcher="jax", python=python, **fields)


def test_processes_on_two_hosts_meet_without_an_argument_whatever_proxies_are_named(jobs, python):
    """Case B75, of JAX: gRPC would wait for the proxy for ever."""
    proxies = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "no_proxy": "localhost"}
    job = run(jobs, JOIN, python, env=proxies)
    assert job.error is None, job.text
    for rank in range(4):
        assert f"process {rank} of 4 met [0, 1, 2, 3]" in job.of_rank(rank)


def test_the_batch_is_spread_over_all_processes_and_all_learn_the_same(jobs, python):
    job = run(jobs, TRAIN.read_text(), python, furnish=digits)
    assert job.error is None, job.text
    assert len(job.left.result["checksums"]) == job.left.result["world_size"] == 4
    assert len(set(job.left.result["checksums"])) == 1
    loss = job.left.result["loss"]
    assert loss[-1] < loss[0] / 5
    assert job.left.metrics == {"epoch": 20, "loss": loss[-1]}


def test_one_process_that_nobody_checks_needs_no_argument_either(jobs, python):
    job = run(jobs, JOIN, python, nnodes=1, nproc_per_node=1, check_group=False)
    assert job.error is None, job.text
    assert job.of_rank(0)[-1] == "process 0 of 1 met [0]"


def test_what_a_program_says_itself_counts(jobs, python):
    swapped = "initialize(process_id=[0, 2, 1, 3][int(os.environ['RANK'])])"
    job = run(jobs, "import os" + JOIN.replace("initialize()", swapped), python)
    assert job.error is None, job.text
    assert "process 2 of 4 met [0, 1, 2, 3]" in job.of_rank(1)


def test_a_program_that_does_not_join_is_no_success(jobs, python):
    job = run(jobs, "import jax; print(jax.process_count())", python)
    assert isinstance(job.error, GroupNotFormed)
    assert "jax.distributed formed no group" in job.error.message


def test_a_process_that_fails_is_named_and_not_those_that_it_pulled_down(jobs, python):
    fails = """
import time
for step in range(3000):
    multihost_utils.sync_global_devices(str(step))
    if step == 3 and jax.process_index() == 3:
        raise KeyError("layer")
"""
    job = run(jobs, JOIN + fails, python, grace_period=2.0)
    assert (job.error.rank, job.error.host, job.error.exit_code) == (3, "gpu2", 1)
    assert "KeyError: 'layer'" in job.error.message


def test_a_port_taken_between_lease_and_use_is_told_as_such(jobs, python):
    """Case B41: the coordinator finds its port taken, as if somebody had been faster."""
    job = run(jobs, JOIN, python, nnodes=1, nproc_per_node=1, setup=THIEF)
    assert is_port_taken(job.error), job.error
