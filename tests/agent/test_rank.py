"""Below a launcher that starts the ranks of its node, each rank has its own log and exit record."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.agent.host import Job, alive, texts, until

# What torchrun and mpirun do: start N children, tell each its rank, end with their status.
LAUNCHER = """
    import os, signal, subprocess, sys
    status, ranks, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    print("launching")
    children = [
        subprocess.Popen(
            command,
            env={**os.environ, "RANK": str(n), "LOCAL_RANK": str(n)},
            start_new_session=True,
        )
        for n in range(ranks)
    ]
    signal.signal(signal.SIGTERM, lambda *_: [os.killpg(child.pid, 15) for child in children])
    codes = [child.wait() for child in children]
    sys.exit(int(status) if status != "own" else max(map(abs, codes)))
"""


def launch(job: Job, program: str, *, ranks: int = 2, status: str = "own", **env: str) -> None:
    """Start a launcher with ranks below it."""
    prepared = job.prepare()
    wrapper = ["python3", "-I", f"{prepared['dir']}/agent.pyz", "rank", "--local-rank-at=3", "--"]
    rank = [sys.executable, "-c", program, "--local_rank="]
    launcher = job.rank(0, LAUNCHER, **env)
    launcher["argv"] += [status, str(ranks), *wrapper, *rank]
    launcher |= {"name": "launcher", "rank": None}
    del launcher["env"]["RANK"]
    started = job.start(processes=[launcher], ranks=list(range(ranks)), start_timeout=20)
    assert started["ok"], started


def exits(journal: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in journal if each["k"] == "exit"}


def test_ranks_below_a_launcher_are_seen_one_by_one(job: Job) -> None:
    launch(job, "import os; print('I am', os.environ['RANK'], os.environ['DT_RANK'])")
    journal = job.journal()
    assert (texts(journal, 0), texts(journal, 1)) == (["I am 0 0"], ["I am 1 1"])
    assert texts(journal, "launcher") == ["launching"]
    assert sorted(each["name"] for each in journal if each["k"] == "started") == [
        "launcher",
        "rank-0",
        "rank-1",
    ]
    assert {each["code"] for each in exits(journal).values()} == {0}
    assert journal[-1]["state"] == "success"


@pytest.mark.parametrize(
    ("death", "code", "killed_by"),
    [("sys.exit(7)", 7, None), ("os.kill(os.getpid(), 9)", None, "SIGKILL")],
)
def test_a_rank_that_fails_is_named_and_ends_all(
    job: Job, death: str, code: int | None, killed_by: str | None
) -> None:
    program = f"import os, sys, time; os.environ['RANK'] == '1' and {death}; time.sleep(600)"
    launch(job, program)
    journal = job.journal()
    failed = exits(journal)["rank-1"]
    assert (failed["code"], failed["signal"], failed["by_us"]) == (code, killed_by, False)
    assert exits(journal)["rank-0"]["by_us"]
    assert journal[-1]["state"] == "failed"


def test_the_status_of_a_launcher_proves_nothing(job: Job) -> None:
    """B31: Open MPI returns 0 although a rank is gone."""
    job.prepare()
    launcher = {**job.rank(0, "pass"), "name": "launcher", "rank": None}
    job.start(processes=[launcher], ranks=[0])
    end = job.journal()[-1]
    assert end["state"] == "failed"
    assert end["reason"] == "the launcher ended, but rank 0 did not succeed"


def test_the_end_of_a_rank_is_known_although_its_launcher_has_killed_what_stands_between(
    job: Job,
) -> None:
    """Hydra kills all that it has started as soon as one rank aborts, before that has ended."""
    program = "import os; os.environ['RANK'] == '1' and (os.kill(os.getppid(), 9), os._exit(5))"
    launch(job, program, status="0")
    assert exits(job.journal())["rank-1"]["code"] == 5


def test_a_launcher_may_complain_if_all_ranks_have_succeeded(job: Job) -> None:
    launch(job, "pass", status="1")
    assert job.journal()[-1]["state"] == "success"


def test_a_launcher_that_lingers_after_its_ranks_is_ended(job: Job) -> None:
    job.prepare(grace_period=0.5)
    launcher = job.rank(0, "import time; time.sleep(600)")
    launcher |= {"name": "launcher", "rank": None}
    record = '{"name":"rank-0","rank":0,"pid":1,"code":0,"signal":null,"elapsed":1}'
    (job.path / "ranks/0.json").write_text(record)
    job.start(processes=[launcher], ranks=[0])
    assert job.journal()[-1]["state"] == "success"


def test_ranks_that_a_launcher_does_not_start_are_missed(job: Job) -> None:
    job.prepare()
    launcher = {**job.rank(0, "import time; time.sleep(600)"), "name": "launcher", "rank": None}
    job.start(processes=[launcher], ranks=[2, 3], start_timeout=0.5)
    assert job.journal()[-1]["reason"] == "ranks 2, 3 did not start in time (start_timeout)"


def test_a_stop_signal_reaches_ranks_through_their_launcher(job: Job) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(0)))
print("ready"); time.sleep(600)
"""
    launch(job, program)
    job.wait_for("ready")
    pids = [each["pid"] for each in job.events("started")]
    until(lambda: sum(each["m"] == "ready" for each in job.events("log")) == 2)
    job.call("stop", reason="enough", owner=None, wait=30)
    assert sum(each["m"] == "saved" for each in job.events("log")) == 2
    assert not any(map(alive, pids))


def test_a_rank_inherits_descriptors_and_no_settings_of_torchrun(job: Job) -> None:
    """PET_* would bind a torchrun inside a rank."""
    before = ("sh", "-c", 'exec 7>fd; exec "$0" "$@"')
    program = "import os; os.write(7, b'inherited'); print(*os.environ)"
    env = {"RANK": "0", "PET_NNODES": "2"}
    journal = under_exec(job, sys.executable, "-c", program, env=env, before=before)
    names = texts(journal)[0].split()
    assert (job.path / "work/fd").read_text() == "inherited"
    assert "RANK" in names
    assert "PET_NNODES" not in names


def under_exec(
    job: Job, *program: str, env: dict[str, str], before: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Run one rank right below the agent, and return the journal."""
    wrapper = [*before, "python3", "-I", f"{job.prepare()['dir']}/agent.pyz", "rank", "--"]
    launcher = {"name": "launcher", "rank": None, "argv": [*wrapper, *program], "env": env}
    job.start(processes=[launcher], ranks=[0], scrub=["RANK"])
    return job.journal()


def test_a_local_rank_is_put_into_the_argument_of_old_scripts(job: Job) -> None:
    launch(job, "import sys; print(sys.argv[1])")
    assert texts(job.journal(), 1) == ["--local_rank=1"]


def test_a_program_that_a_rank_cannot_execute_is_named(job: Job) -> None:
    exit_ = exits(under_exec(job, "no-such-program", env={"RANK": "0"}))["rank-0"]
    assert exit_["code"] == 127
    assert exit_["tail"] == ["cannot execute no-such-program: No such file or directory"]


def test_a_rank_without_a_number_says_what_it_looked_for(job: Job) -> None:
    journal = under_exec(job, "true", env={})
    assert "has set no RANK" in texts(journal, "launcher")[0]
