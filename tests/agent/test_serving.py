"""Ranks that serve others wait for the word that these are done, and end then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.agent.host.proxies import exempted
from tests.agent.host import until

if TYPE_CHECKING:
    from tests.agent.host import Job, Json

SERVE = "import time; print('serving'); time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('serving'); time.sleep(600)"


def begin(job: Job, *programs: str, serves: dict[int, float], **fields: Any) -> None:
    """Start ranks, of which some serve, and wait until these do."""
    assert job.prepare(**fields)["ok"]
    assert job.start(*programs, serves=serves)["ok"]
    job.wait_for("serving")


def ends(job: Job) -> tuple[Json, dict[int, Json]]:
    """Return the last record of a job, and the exit of each rank."""
    journal = job.journal()
    return journal[-1], {each["rank"]: each for each in journal if each["k"] == "exit"}


def test_a_server_goes_on_until_those_whom_it_serves_are_done_everywhere(job: Job) -> None:
    """Case B77."""
    begin(job, "pass", SERVE, serves={1: 0})
    until(lambda: job.events("exit"))
    time.sleep(1)
    assert not job.events("ending")
    assert job.call("release")["ok"]
    ended, exits = ends(job)
    assert (ended["state"], ended["reason"]) == ("success", "ranks done")
    assert (exits[1]["signal"], exits[1]["by_us"]) == ("SIGTERM", True)
    assert len(job.events("released")) == 1


def test_a_node_of_servers_alone_waits_too(job: Job) -> None:
    begin(job, SERVE, serves={0: 0})
    time.sleep(1)
    assert not job.events("ending")
    job.call("release")
    assert ends(job)[0]["state"] == "success"


def test_a_server_that_ignores_the_signal_is_killed(job: Job) -> None:
    begin(job, "pass", DEAF, serves={1: 0}, grace_period=0.5)
    until(lambda: job.events("exit"))
    job.call("release")
    ended, exits = ends(job)
    assert (ended["state"], ended["survivors"]) == ("success", [])
    assert exits[1]["signal"] == "SIGKILL"


@pytest.mark.parametrize(
    "program", ["print('serving'); raise SystemExit(3)", "print('serving', x)"]
)
def test_a_server_that_fails_while_it_is_needed_fails_the_job(job: Job, program: str) -> None:
    """Case B77."""
    assert job.prepare()["ok"]
    job.start("import time; time.sleep(600)", program, serves={1: 0})
    ended, exits = ends(job)
    assert ended["state"] == "failed"
    assert (exits[1]["by_us"], exits[0]["by_us"]) == (False, True)


def test_it_does_not_matter_how_a_server_ends_that_nobody_needs(job: Job) -> None:
    fails = """
    import signal, sys, time
    signal.signal(15, lambda *_: sys.exit(3))
    print("serving")
    time.sleep(600)
    """
    begin(job, "pass", fails, serves={1: 0})
    job.call("release")
    ended, exits = ends(job)
    assert ended["state"] == "success"
    assert (exits[1]["code"], exits[1]["by_us"]) == (3, True)


LAST = """
import os, time
print("serving")
while not os.path.exists("last"):
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("then", "state"), [("pass", "success"), ("1 / 0", "failed")])
def test_an_evaluator_may_end_by_itself_when_all_others_are_done(
    job: Job, then: str, state: str
) -> None:
    begin(job, "pass", LAST + then, serves={1: 60})
    job.call("release")
    until(lambda: job.events("released"))
    (job.path / "work/last").touch()
    ended, exits = ends(job)
    assert (ended["state"], exits[1]["by_us"]) == (state, False)


def test_an_evaluator_that_goes_on_for_too_long_is_ended(job: Job) -> None:
    begin(job, "pass", SERVE, serves={1: 1.5})
    began = time.monotonic()
    job.call("release")
    ended, exits = ends(job)
    assert 1.5 <= time.monotonic() - began < 10
    assert (ended["state"], exits[1]["by_us"]) == ("success", True)


def test_a_server_that_ended_before_is_not_waited_for(job: Job) -> None:
    begin(job, "pass", "print('serving')", serves={1: 0})
    ended, exits = ends(job)
    assert (ended["state"], exits[1]["by_us"]) == ("success", False)


def test_a_release_of_what_has_ended_is_in_order(job: Job) -> None:
    job.run("pass")
    assert job.call("release")["ok"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"no_proxy": "a,b", "NO_PROXY": "a,b"}),
        ({"no_proxy": "x,y"}, {"no_proxy": "x,y,a,b", "NO_PROXY": "x,y,a,b"}),
        ({"NO_PROXY": "x"}, {"no_proxy": "x,a,b", "NO_PROXY": "x,a,b"}),
        ({"no_proxy": "x", "NO_PROXY": "y"}, {"no_proxy": "x,a,b", "NO_PROXY": "y,a,b"}),
        (
            {"no_grpc_proxy": "z"},
            {"no_proxy": "a,b", "NO_PROXY": "a,b", "no_grpc_proxy": "z,a,b"},
        ),
    ],
    ids=["none", "lower", "upper", "both", "grpc"],
)
def test_what_was_exempted_from_proxies_still_is(
    env: dict[str, str], expected: dict[str, str]
) -> None:
    assert exempted(env, ["a", "b"]) == expected
    assert exempted(env, []) == {}


def test_addresses_are_added_to_what_the_host_exempts(job: Job) -> None:
    """Case B75."""
    job.host.env["no_proxy"] = "localhost"
    job.prepare()
    process = {**job.rank(0, "import os; print(os.environ['no_proxy'])"), "no_proxy": ["10.0.0.1"]}
    job.call("start", processes=[process], ranks=[0])
    assert [each["m"] for each in job.journal() if each["k"] == "log"] == ["localhost,10.0.0.1"]
