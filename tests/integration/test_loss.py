"""Hosts that die, and networks that only seem to."""

from __future__ import annotations

import threading
import time

import pytest

from distributed_training.errors import NodeLost, RankFailed
from tests.fleet.processes import with_environment

COUNT = """
import os, time
for n in range(int(os.environ.get("LINES", "600"))):
    print("line", n, flush=True)
    time.sleep(0.1)
"""
TIMES = {"host_timeout": 8.0, "grace_period": 2.0, "nproc_per_node": 1}
SILENT = ["power_cut", "cut_cable"]


@pytest.mark.parametrize("fault", SILENT)
@pytest.mark.parametrize("victim", ["gpu1", "gpu2"], ids=["head", "other"])
def test_a_dead_host_is_found_in_time_and_the_others_are_ended(jobs_on, make_fleet, fault, victim):
    hosts = make_fleet(3)
    began = []

    def strike(job):
        began.append(time.monotonic())
        getattr(hosts[victim], fault)()

    job = jobs_on(hosts, conn_timeout=4).run(COUNT, when="line 20", then=strike, **TIMES)
    assert isinstance(job.error, NodeLost), job.error
    assert job.error.host == victim
    assert time.monotonic() - began[0] < 8 + 10 + 5  # host_timeout, evidence, the others' end
    if fault == "power_cut":
        assert not with_environment(f"DT_JOB_ID={job.plan.spec.job_id}")


def test_a_host_that_comes_back_with_another_boot_is_lost(jobs_on, make_fleet):
    hosts = make_fleet(2)

    def restart(job):
        hosts["gpu2"].power_cut()
        hosts["gpu2"].power_on()

    times = TIMES | {"host_timeout": 60.0}
    job = jobs_on(hosts, conn_timeout=4).run(COUNT, when="line 20", then=restart, **times)
    assert isinstance(job.error, NodeLost), job.error
    assert job.error.host == "gpu2"


def test_an_outage_of_our_own_network_costs_nothing(jobs_on, make_fleet):
    """All hosts fall silent to us for longer than host_timeout, and to each other they do not."""
    hosts = make_fleet(2)

    def outage(job):
        for host in hosts.hosts:
            host.freeze()
        time.sleep(12)
        for host in hosts.hosts:
            host.thaw()

    env = {"LINES": "250"}
    job = jobs_on(hosts, conn_timeout=4).run(COUNT, when="line 20", then=outage, env=env, **TIMES)
    assert job.error is None, job.error
    for rank in range(2):
        assert job.of_rank(rank) == [f"line {n}" for n in range(250)]


def test_a_host_that_only_we_cannot_reach_is_waited_for(jobs_on, make_fleet):
    hosts = make_fleet(3)

    def outage(job):
        hosts["gpu3"].freeze()
        threading.Timer(14, hosts["gpu3"].thaw).start()

    env = {"LINES": "250"}
    job = jobs_on(hosts, conn_timeout=4).run(COUNT, when="line 20", then=outage, env=env, **TIMES)
    assert job.error is None, job.error
    assert job.of_rank(2) == [f"line {n}" for n in range(250)]


def test_the_first_failure_is_found_although_clocks_differ(jobs_on, make_fleet):
    hosts = make_fleet(2)
    hosts["gpu1"].clock_offset(120)
    script = """
import os, select  # libfaketime, which makes the clock wrong, breaks Python's time.sleep
select.select([], [], [], 1 if os.environ["RANK"] == "0" else 1.5)
raise SystemExit(10 + int(os.environ["RANK"]))
"""
    job = jobs_on(hosts).run(script, nproc_per_node=1, grace_period=2.0)
    assert isinstance(job.error, RankFailed)
    assert (job.error.rank, job.error.exit_code) == (0, 10)
