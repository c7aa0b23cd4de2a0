"""How ranks end is recorded, and decides how the job ends."""

from __future__ import annotations

import pytest

from tests.agent.host import Job, exits, texts


@pytest.mark.parametrize(
    ("program", "code", "killed_by"),
    [
        ("raise SystemExit(7)", 7, None),
        ("raise ValueError", 1, None),
        ("import os; os.kill(os.getpid(), 11)", None, "SIGSEGV"),
        ("import os; os.abort()", None, "SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", None, "SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", None, "signal 40"),
    ],
)
def test_an_exit_is_recorded_as_it_was(
    job: Job, program: str, code: int | None, killed_by: str | None
) -> None:
    """B31, B32."""
    journal = job.run(program)
    exit_ = exits(journal)[0]
    assert (exit_["code"], exit_["signal"]) == (code, killed_by)
    assert (exit_["name"], exit_["by_us"], exit_["oom"]) == ("rank-0", False, False)
    assert exit_["elapsed"] >= 0
    assert (journal[-1]["state"], journal[-1]["survivors"]) == ("failed", [])


def test_a_job_succeeds_when_every_rank_does(job: Job) -> None:
    journal = job.run("pass", "import time; time.sleep(0.5)")
    assert [each["k"] for each in journal if each["k"] != "log"] == [
        "prepared",
        *["started"] * 2,
        *["exit"] * 2,
        "ending",
        "ended",
    ]
    assert (journal[-1]["state"], journal[-1]["reason"]) == ("success", "ranks done")


def test_the_end_is_the_last_line_even_after_much_output(job: Job) -> None:
    journal = job.run("for n in range(100_000): print(n)")
    assert journal[-1]["k"] == "ended"
    assert texts(journal)[-1] == "99999"


def test_a_rank_beyond_the_expected_ones_is_ended_after_them(job: Job) -> None:
    """B77: parameter servers never end by themselves."""
    job.prepare()
    server, worker = job.rank(0, "import time; time.sleep(600)"), job.rank(1, "pass")
    job.start(processes=[server, worker], ranks=[1])
    journal = job.journal()
    assert journal[-1]["state"] == "success"
    assert exits(journal)[0]["by_us"]


def test_a_rank_beyond_the_expected_ones_may_not_fail(job: Job) -> None:
    """B77."""
    job.prepare()
    server, worker = job.rank(0, "raise SystemExit(2)"), job.rank(1, "import time; time.sleep(600)")
    job.start(processes=[server, worker], ranks=[1])
    assert job.journal()[-1]["state"] == "failed"


@pytest.mark.parametrize(("status", "state"), [(0, "success"), (3, "failed")])
def test_a_launcher_without_ranks_decides_by_its_exit(job: Job, status: int, state: str) -> None:
    job.prepare()
    launcher = {**job.rank(0, f"raise SystemExit({status})"), "name": "launcher", "rank": None}
    job.start(processes=[launcher], ranks=[])
    assert job.journal()[-1]["state"] == state
