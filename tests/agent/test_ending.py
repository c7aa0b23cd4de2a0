"""Nothing of a job survives its end, whoever dies first."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.agent.host import Job, alive, until

if TYPE_CHECKING:
    from tests.agent.conftest import NewJob

STUBBORN = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf", flush=True)
    time.sleep(600)
"""
FAMILY = """
    import os, subprocess, sys, time
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    print("child", subprocess.Popen(sleep).pid)
    print("session", subprocess.Popen(sleep, start_new_session=True).pid)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(3, 1024)
            print("daemon", os.getpid(), flush=True)
            os.execv(sys.executable, sleep)
        os._exit(0)
    time.sleep(600)
"""


def family(job: Job) -> list[int]:
    """Return rank 0 and all processes that it told of."""
    for name in ("child", "session", "daemon"):
        job.wait_for(name)
    lines = [each["m"].split() for each in job.events("log")]
    return [job.events("started")[0]["pid"], *(int(pid) for _, pid in lines)]


def test_stop_ends_children_sessions_and_daemons(job: Job) -> None:
    """B25."""
    job.prepare()
    job.start(FAMILY)
    pids = family(job)
    answer = job.call("stop", reason="enough", owner=None, wait=30)
    assert answer == {"ok": True, "state": "ended", "survivors": 0}
    assert not any(map(alive, pids))
    assert [each["k"] for each in job.journal()[-3:]] == ["ending", "exit", "ended"]


def test_a_rank_that_ignores_the_stop_signal_is_killed_after_the_grace_period(job: Job) -> None:
    """B36."""
    job.prepare(grace_period=0.5)
    job.start(STUBBORN)
    job.wait_for("deaf")
    job.call("stop", reason="enough", owner=None, wait=30)
    exit_ = job.events("exit")[0]
    assert (exit_["signal"], exit_["by_us"]) == ("SIGKILL", True)
    assert job.events("ended")[0]["state"] == "stopped"


def test_a_rank_may_save_its_state_when_it_is_stopped(job: Job) -> None:
    """The stop signal is the user's, and reaches a program below a shell too."""
    saver = "import signal,sys,time; "
    saver += "signal.signal(signal.SIGUSR1, lambda *_: (print('saved'), sys.exit(0))); "
    saver += "print('ready'); time.sleep(600)"
    job.prepare(stop_signal="SIGUSR1")
    rank = job.rank(0, "")
    rank["argv"] = ["/bin/sh", "-c", f'{rank["argv"][0]} -c "{saver}"; true']
    job.start(processes=[rank], ranks=[0])
    job.wait_for("ready")
    job.call("stop", reason="enough", owner=None, wait=30)
    job.wait_for("saved")


def test_the_helpers_of_a_rank_live_while_it_saves(job: Job) -> None:
    """A DataLoader that dies under its rank would spoil the checkpoint."""
    job.prepare()
    job.start(
        """
        import signal, subprocess, sys, time
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        def save(*_):
            time.sleep(0.7)
            print("helper", helper.poll())
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready")
        time.sleep(600)
        """
    )
    job.wait_for("ready")
    job.call("stop", reason="enough", owner=None, wait=30)
    job.wait_for("helper None")


def test_a_rank_whose_main_thread_has_ended_is_ended_too(job: Job) -> None:
    job.prepare()
    job.start(
        """
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(600,)).start()
        print("leaving", flush=True)
        ctypes.CDLL(None).pthread_exit(None)
        """
    )
    job.wait_for("leaving")
    job.call("stop", reason="enough", owner=None, wait=30)
    assert job.events("exit")[0]["signal"] == "SIGTERM"


def test_a_failing_rank_ends_the_others(job: Job) -> None:
    """B32."""
    sleeps = ["import time; time.sleep(600)"] * 3
    journal = job.run(*sleeps, "import time; time.sleep(0.3); raise SystemExit(3)")
    exits = {each["rank"]: each for each in journal if each["k"] == "exit"}
    assert (exits[3]["code"], exits[3]["by_us"]) == (3, False)
    assert all(exits[rank]["by_us"] and exits[rank]["signal"] == "SIGTERM" for rank in range(3))
    assert (journal[-1]["state"], journal[-1]["reason"]) == ("failed", "rank failed")


def test_what_ranks_leave_behind_is_ended_after_their_success(job: Job) -> None:
    job.prepare()
    job.start(FAMILY.replace("time.sleep(600)\n", "time.sleep(1)\n"))
    pids = family(job)
    assert job.journal()[-1]["state"] == "success"
    assert not any(map(alive, pids))


@pytest.mark.parametrize("victim", [0, 1], ids=["supervisor", "watchdog"])
def test_if_one_agent_is_killed_the_other_ends_the_ranks(job: Job, victim: int) -> None:
    job.prepare()
    job.start(FAMILY)
    pids = family(job)
    os.kill(job.agents()[victim], signal.SIGKILL)
    journal = job.journal()
    assert not any(map(alive, pids))
    assert journal[-1]["state"] == "lost"
    assert "agent lost" in journal[-1]["reason"]
    assert [each["rank"] for each in journal if each["k"] == "exit"] == [0]


@pytest.mark.parametrize("by", ["stop", "attach", "gc"])
def test_if_both_agents_are_killed_the_next_call_ends_the_ranks(job: Job, by: str) -> None:
    job.prepare()
    job.start(FAMILY)
    pids = family(job)
    for agent in reversed(job.agents()):
        os.kill(agent, signal.SIGKILL)
    if by == "stop":
        assert job.call("stop", reason="enough", owner=None, wait=30)["state"] == "ended"
    elif by == "gc":
        job.host.call("gc", keep_days=1, keep_sources_days=1)
    journal = job.journal()
    assert not any(map(alive, pids))
    assert journal[-1]["state"] == "lost"
    assert journal[-1]["survivors"] == []


def test_a_job_that_nobody_watches_ends_itself(job: Job) -> None:
    job.prepare(orphan_timeout=1)
    job.start("import time; time.sleep(600)")
    until(lambda: job.events("ended"))
    assert job.events("ended")[0]["reason"] == "orphaned"
    assert job.events("ended")[0]["state"] == "stopped"


def test_a_prepared_job_that_nobody_starts_ends_itself(job: Job) -> None:
    job.prepare(orphan_timeout=0.3, slots=["cpu-0"])
    until(lambda: not job.host.call("offer")["busy"])


def test_a_stop_names_its_reason_in_the_journal_first(job: Job) -> None:
    job.prepare()
    job.start("import time; time.sleep(600)")
    job.call("stop", reason="task cleared", owner="me", wait=30)
    kinds = [each["k"] for each in job.journal() if each["k"] != "log"]
    assert kinds == ["prepared", "started", "cancel", "ending", "exit", "ended"]
    assert job.events("cancel")[0]["reason"] == "task cleared"
    assert job.events("ended")[0]["reason"] == "stopped: task cleared"


def test_a_stop_by_a_former_owner_does_nothing(job: Job) -> None:
    job.prepare(owner="me")
    job.start("import time; time.sleep(600)")
    assert job.call("stop", reason="x", owner="other", wait=0)["state"] == "not_owner"
    assert not job.events("ending")


def test_a_stop_of_an_unknown_job_says_so(job: Job) -> None:
    assert job.call("stop", reason="x", owner=None, wait=0)["state"] == "unknown"


def test_a_stop_during_setup_ends_the_setup(job: Job) -> None:
    preparing = job.host.open("prepare", **job.key, slots=[], setup="echo $$ > pid; sleep 600")
    pid_file = job.path / "work/pid"
    pid = int(until(lambda: pid_file.exists() and pid_file.read_text()))
    assert job.call("stop", reason="enough", owner=None, wait=30)["state"] == "ended"
    assert not alive(pid)
    preparing[0].communicate()


def test_the_supervisor_ends_in_good_order_when_the_host_shuts_down(job: Job) -> None:
    job.prepare()
    job.start("import time; time.sleep(600)")
    for agent in job.agents():
        os.kill(agent, signal.SIGTERM)
    assert job.journal()[-1]["reason"] == "stopped: the agent received SIGTERM"


def test_processes_of_other_jobs_are_left_alone(job: Job, new_job: NewJob) -> None:
    """B25."""
    other = new_job()
    other.prepare()
    pid = other.start("import time; time.sleep(600)")["pids"]["rank-0"]
    job.run("raise SystemExit(1)")
    assert alive(pid)
