"""A port belongs to the job from its lease to the rank that binds it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.host import Job, as_user, texts, until

if TYPE_CHECKING:
    from tests.agent.conftest import NewJob

FAMILIES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::1")]


def free_port(job: Job) -> int:
    port: int = job.host.call("offer")["ports"][0]
    return port


def test_ports_are_offered_outside_the_range_of_outgoing_connections(job: Job) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = job.host.call("offer")["ports"]
    assert len(set(ports)) == 64
    assert not any(low <= port <= high or port < 1024 for port in ports)


@pytest.mark.parametrize(("family", "address"), FAMILIES, ids=["loopback", "any", "ipv6"])
def test_a_port_in_use_is_refused_with_its_process(
    job: Job, family: socket.AddressFamily, address: str
) -> None:
    """B41."""
    port = free_port(job)
    with socket.socket(family) as listener:
        listener.bind((address, port))
        listener.listen()
        error = job.prepare(ports=[port])["error"]
    assert (error["kind"], error["port"], error["pid"]) == ("port_taken", port, os.getpid())
    assert error["user"]
    assert "pytest" in error["command"]
    assert str(os.getpid()) in error["message"]
    assert not job.path.exists()


def test_a_port_of_another_job_is_refused_with_that_job(job: Job, new_job: NewJob) -> None:
    """B41."""
    port = free_port(job)
    job.prepare(ports=[port])
    error = new_job().prepare(ports=[port])["error"]
    assert error["kind"] == "port_taken"
    assert error["pid"] == job.agents()[0]


def test_of_several_ports_all_are_held_or_none(job: Job, new_job: NewJob) -> None:
    first, second = job.host.call("offer")["ports"][:2]
    with socket.create_server(("", second)):
        assert job.prepare(ports=[first, second])["error"]["port"] == second
    other = new_job()
    assert other.prepare(ports=[first, second])["ok"]
    for port in (first, second):
        assert job.prepare(ports=[port])["error"]["pid"] == other.agents()[0]


def test_a_port_that_the_user_may_not_have_is_named(new_job: NewJob, shared: Path) -> None:
    job = new_job(as_user(65001, shared))
    (problem,) = job.prepare(ports=[80])["error"]["problems"]
    assert problem["what"] == "port 80 cannot be used"
    assert problem["why"] == "65001 cannot listen there: Permission denied"
    assert "set master_port= to another" in problem["do"]


def test_a_port_is_listened_on_until_the_rank_binds_it(job: Job) -> None:
    port = free_port(job)
    job.prepare(ports=[port])
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as probe:
            probe.connect((address, port))
    job.start(
        f"""
        import socket
        listener = socket.create_server(("", {port}))
        print("bound", listener.getsockname()[1])
        """
    )
    assert texts(job.journal()) == [f"bound {port}"]


def test_a_leased_port_stays_locked_while_the_ranks_run(job: Job, new_job: NewJob) -> None:
    port = free_port(job)
    job.prepare(ports=[port])
    job.start("import time; time.sleep(600)")
    error = new_job().prepare(ports=[port])["error"]
    assert (error["kind"], job.key["job"] in error["message"]) == ("port_taken", True)


def test_another_node_reaches_the_head(job: Job, new_job: NewJob) -> None:
    """B39."""
    port = free_port(job)
    other = new_job()
    waiting, _ = other.host.open("prepare", **other.key, slots=[], reach=["127.0.0.1", port])
    until((other.path / "state.json").exists)
    job.prepare(ports=[port])
    assert b'"ok":true' in waiting.communicate()[0]


def test_a_head_that_cannot_be_reached_is_named(job: Job) -> None:
    """B39."""
    error = job.prepare(reach=["256.256.256.256", 29500])["error"]
    assert error["kind"] == "preflight"
    assert error["problems"][0]["what"] == "cannot reach the head at 256.256.256.256 port 29500"
    assert "address=" in error["problems"][0]["do"]
