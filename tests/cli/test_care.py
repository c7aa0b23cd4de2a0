"""`gc`, `drain` and `undrain`, and what they and quarantine mean for launches."""

from __future__ import annotations

import json
import secrets

import pytest

from distributed_training.errors import HostWithheld
from distributed_training.plan import Program
from distributed_training.run.launch import launch, propose
from tests.offers import spec


def job(**fields):
    """Return the specification of a job that waits."""
    program = Program("command", ("sleep", "600"))
    return spec(job_id=f"care-{secrets.token_hex(4)}", program=program, grace_period=1.0, **fields)


def hosts_of(jobs, **fields) -> list[str]:
    """Return the hosts that a job would use."""

    async def ask(agents):
        plan, _ = await propose(job(**fields), list(agents.values()))
        return [node.host.name for node in plan.nodes]

    return jobs.ask(ask)


def test_what_ended_jobs_left_is_removed_on_demand(jobs_on, make_fleet, shell):
    hosts = make_fleet(2)
    jobs_on(hosts, slots=1).run("open('big', 'w').write('x' * 3_000_000)")
    dry = shell("gc", "--days", "0", "--dry-run")
    assert dry.out.startswith("gpu1: would remove 2 (0.00 GB)")
    assert shell("ps", "--all").out.count("success") == 2
    assert shell("gc").out.startswith("gpu1: removed 0")
    done = shell("gc", "--days", "0", "--json")
    assert done.status == 0
    removed = json.loads(done.out)
    assert [len(removed[name]["removed"]) for name in ("gpu1", "gpu2")] == [2, 2]
    assert removed["gpu1"]["bytes"] > 3_000_000
    left = hosts["gpu1"].exec(["find", ".distributed_training", "-type", "f"]).stdout.split()
    assert {path.rpartition("/")[2] for path in left} <= {"boot_id", "housekeeping"}


@pytest.mark.parametrize("option", ["--days", "--max-gb"])
@pytest.mark.parametrize("number", ["-1", "nan", "inf", "x"])
def test_a_limit_that_is_none_removes_nothing(jobs, shell, option, number):
    jobs.run("pass")
    done = shell("gc", f"{option}={number}")
    assert (done.status, done.out) == (2, "")


def test_each_task_says_how_long_its_folders_stay(jobs, shell):
    short = jobs.run("pass", keep_days=0.0).plan.spec.job_id
    jobs.run("pass", keep_days=7.0)
    found = json.loads(shell("gc", "--dry-run", "--json").out)
    own = [name for name in found["gpu1"]["removed"] if name.startswith("test-")]
    assert own == [f"{short}/0/0"]


def test_a_drained_host_is_left_out_until_it_is_given_back(jobs_on, make_fleet, shell):
    hosts = make_fleet(2)
    jobs = jobs_on(hosts, slots=1)
    assert shell("drain", "gpu1", "--reason", "new fans").status == 0
    assert hosts_of(jobs, nnodes=1) == ["gpu2"]
    with pytest.raises(HostWithheld) as refused:
        hosts_of(jobs)
    assert "the job needs 2 of 2 hosts, but gpu1 is drained by " in refused.value.message
    assert "(new fans). Give back with `python -m distributed_training undrain gpu1`" in str(
        refused.value
    )
    assert str(refused.value).endswith("or go on without with nnodes=1")
    hosts["gpu1"].power_cut()
    hosts["gpu1"].power_on()
    assert hosts_of(jobs, nnodes=1) == ["gpu2"]
    assert "it is drained by" in shell("doctor").out
    assert shell("undrain", "gpu1").status == 0
    assert hosts_of(jobs) == ["gpu1", "gpu2"]


def test_a_host_that_was_restarted_under_a_job_is_quarantined_for_a_while(
    jobs_on, make_fleet, shell
):
    hosts = make_fleet(2)
    jobs = jobs_on(hosts, slots=1, quarantine=600)
    lost = job()

    async def start(agents):
        await launch(lost, list(agents.values()), owner="me")

    jobs.ask(start)
    hosts["gpu1"].power_cut()
    hosts["gpu1"].power_on()
    assert hosts_of(jobs, nnodes=1) == ["gpu1"]  # a fleet that states no time has no quarantine
    assert hosts_of(jobs, nnodes=1, quarantine=600) == ["gpu2"]
    words = f"gpu1 is quarantined until .* UTC: it was restarted while job {lost.job_id} ran on it"
    with pytest.raises(HostWithheld, match=words):
        hosts_of(jobs, quarantine=600)
    assert "use: it is quarantined until" in shell("doctor").out
    shell("undrain", "gpu1")
    assert hosts_of(jobs, nnodes=1, quarantine=600) == ["gpu1"]


def test_a_quarantine_ends_by_itself(jobs_on, make_fleet):
    hosts = make_fleet(1)
    jobs = jobs_on(hosts, slots=1)

    async def blame(agents):
        await agents["gpu1"].call("mark", fault={"reason": "Xid 79", "since": 1e9})

    jobs.ask(blame)
    assert hosts_of(jobs, quarantine=600) == ["gpu1"]


def test_only_hosts_of_the_fleet_are_drained(jobs, shell):
    done = shell("drain", "gpu9")
    assert (done.status, "gpu9" in done.err) == (2, True)
