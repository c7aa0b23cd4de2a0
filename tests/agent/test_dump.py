"""Where ranks stand: their stacks, wherever they hang, and nobody is hurt by the question."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.agent import site
from tests.agent.host import Host, Job, texts, until

if TYPE_CHECKING:
    from tests.agent.conftest import NewJob

Json = dict[str, Any]

LATE = """
import os, threading, time

def late():
    print("here")
    time.sleep(600)

late()
"""


def begin(job: Job, *programs: str, lines: int | None = None, **env: str) -> None:
    """Start ranks that say when they are where they hang."""
    assert job.prepare(site=site())["ok"]
    ranks = [job.rank(rank, program, **env) for rank, program in enumerate(programs)]
    assert job.start(*programs, processes=ranks)["ok"]
    wait_until_here(job, len(programs) if lines is None else lines)


def wait_until_here(job: Job, lines: int) -> None:
    until(lambda: sum(each["m"] == "here" for each in job.events("log")) == lines, "all are here")


def stacks(job: Job, rank: int = 0, **fields: Any) -> list[str]:
    """Return what each process of a rank tells."""
    answer = job.call("dump", **fields)
    assert answer["ok"], answer
    return [each["text"] for each in answer["ranks"][str(rank)]["processes"]]


def test_every_rank_tells_where_it_stands_and_goes_on(job: Job) -> None:
    begin(job, *[LATE] * 8)
    for _ in range(2):
        ranks = job.call("dump")["ranks"]
        assert sorted(ranks) == list("01234567")
        assert all("line 6 in late" in rank["processes"][0]["text"] for rank in ranks.values())
    assert not job.events("exit")
    assert "line 6 in late" in (job.path / "logs/stacks.log").read_text()


def test_a_rank_that_is_stuck_in_c_code_tells_all_its_threads(job: Job) -> None:
    program = """
import threading, time
def helper():
    print("here")
    time.sleep(600)
threading.Thread(target=helper, daemon=True).start()
10 ** 10 ** 8 # holds the interpreter's lock
"""
    begin(job, program)
    (text,) = stacks(job)
    assert "in helper" in text
    assert "line 7 in <module>" in text


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["sh", "-c", "echo here; while :; do sleep 1; done"], id="no Python"),
        pytest.param([sys.executable, "-Iu", "-c", LATE], id="isolated"),
        pytest.param(
            [
                sys.executable,
                "-c",
                "import os; os.execlp('sh', 'sh', '-c', 'echo here; sleep 600')",
            ],
            id="replaced itself",
        ),
        pytest.param(
            [sys.executable, "-c", f"import os; os.closerange(3, 99){LATE}"], id="closed everything"
        ),
    ],
)
def test_a_process_that_our_signal_would_kill_is_not_asked(job: Job, program: list[str]) -> None:
    job.prepare(site=site())
    rank = job.rank(0, "") | {"argv": program}
    job.start(processes=[rank], ranks=[0])
    wait_until_here(job, 1)
    assert not any(stacks(job, wait=1))
    assert not job.events("exit")
    assert "state" in job.call("dump", wait=1)["ranks"]["0"]["processes"][0]


def test_py_spy_looks_into_a_rank_that_cannot_be_asked(tmp_path: Path, new_job: NewJob) -> None:
    """Where the kernel lets it: a user may not look into processes that are not its children."""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    job = new_job(Host(root=tmp_path / "r", locks=tmp_path / "l", env={"PATH": path}))
    job.prepare(site=site())
    rank = job.rank(0, "") | {"argv": [sys.executable, "-Iu", "-c", LATE, "--token=secret"]}
    job.start(processes=[rank], ranks=[0])
    wait_until_here(job, 1)
    text = stacks(job, wait=1)[0]
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    allowed = os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"
    assert ("late (<string>:6)" in text) == allowed
    assert "secret" not in (job.path / "logs/stacks.log").read_text()


def test_a_stopped_rank_delays_nobody_and_is_told_as_stopped(job: Job) -> None:
    begin(job, LATE, LATE)
    pid = job.events("started")[1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    answer = job.call("dump", wait=1)
    assert "in late" in answer["ranks"]["0"]["processes"][0]["text"]
    (stopped,) = answer["ranks"]["1"]["processes"]
    assert stopped["state"].startswith("T (stopped)")
    assert not stopped["text"] or stopped["by"] == "py-spy"
    os.kill(pid, signal.SIGCONT)


def test_a_rank_that_has_ended_is_told_as_ended(job: Job) -> None:
    begin(job, LATE, "print('here')")
    until(lambda: job.events("exit"))
    rank = job.call("dump")["ranks"]["1"]
    assert (rank["state"], rank["code"]) == ("exited", 0)
    assert "processes" not in rank


def test_helpers_of_a_rank_tell_too_whether_forked_or_started(job: Job) -> None:
    program = f"""
import multiprocessing, os, subprocess, sys
def helper():
    exec({LATE!r}, {{}})
for _ in range(3):
    multiprocessing.get_context("fork").Process(target=helper).start()
subprocess.run([sys.executable, "-c", {LATE!r}])
"""
    begin(job, program, lines=4)
    first, *others = stacks(job)
    assert "subprocess.py" in first
    assert len(others) == 4
    assert all("in late" in text for text in others)


def test_a_rank_below_a_shell_is_found(job: Job) -> None:
    job.prepare(site=site())
    rank = job.rank(0, LATE)
    rank["argv"] = ["sh", "-c", '"$@"; true', "sh", *rank["argv"]]
    job.start(processes=[rank], ranks=[0])
    wait_until_here(job, 1)
    shell, python = stacks(job)
    assert not shell
    assert "in late" in python


def test_a_job_without_hooks_is_started_as_ever_and_tells_nothing(job: Job) -> None:
    job.prepare()
    job.start(f"import os; print('PYTHONPATH' in os.environ){LATE}")
    wait_until_here(job, 1)
    assert texts(job.events("log")) == [str("PYTHONPATH" in os.environ), "here"]
    assert not any(stacks(job, wait=1))


def test_the_users_own_sitecustomize_and_path_are_as_without_ours(job: Job, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', __name__)")
    program = "import sys, sitecustomize; print(sitecustomize.__file__, *sys.path)"
    begin(job, program + "; print('here')", PYTHONPATH=str(tmp_path))
    mine, seen, _ = texts(job.journal())
    assert mine == "mine sitecustomize"
    assert seen.split()[0] == str(tmp_path / "sitecustomize.py")
    assert f"{job.path}/site" not in seen.split()


def test_an_error_in_the_users_own_sitecustomize_is_told_as_without_ours(
    job: Job, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import not_there")
    begin(job, "print('here')", PYTHONPATH=str(tmp_path))
    assert "Error in sitecustomize" in texts(job.journal())[0]


def test_hooks_that_fail_keep_no_program_from_running_and_say_so(job: Job) -> None:
    job.prepare(site=site().replace("import faulthandler", "import not_there"))
    job.start(LATE)
    wait_until_here(job, 1)
    answer = job.call("dump", wait=0.5)
    assert "No module named 'not_there'" in answer["errors"]


def test_the_interpreter_of_a_virtual_environment_has_the_hooks(job: Job, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
    job.prepare(site=site())
    (job.path / "work/late.py").write_text(LATE)
    rank = job.rank(0, "") | {"argv": [str(python), "-m", "late"]}
    job.start(processes=[rank], ranks=[0])
    wait_until_here(job, 1)
    assert 'late.py", line 6 in late' in stacks(job)[0]


def test_flight_recorders_are_asked_and_read(job: Job, torch_python: Path) -> None:
    """The real recorder; what NCCL's own thread does with a pipe is done by the rank here."""
    program = """
import os, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
store = "file://" + os.path.abspath("store")
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
for n in range(9):
    dist.all_reduce(torch.ones(3))
folder = os.environ["DT_NODE_DIR"]
os.mkfifo(folder + "/site/nccl-0.pipe")
pipe = os.open(folder + "/site/nccl-0.pipe", os.O_RDWR)
print("here")
os.read(pipe, 1)
open(folder + "/logs/nccl-rank-0", "wb").write(_dump_fr_trace())
os.read(pipe, 1)
"""
    job.prepare(site=site())
    rank = job.rank(0, program, TORCH_FR_BUFFER_SIZE="100")
    rank["argv"][0] = str(torch_python)
    job.start(processes=[rank], ranks=[0])
    wait_until_here(job, 1)
    told = job.call("dump", wait=60)["nccl"]["0"]  # torch may take seconds to write it
    assert told[-1].startswith("9 gloo:all_reduce [[3]] ")
    assert len(told) == 5


def test_a_pickle_that_would_run_code_is_not_read(job: Job, tmp_path: Path) -> None:
    begin(job, LATE)
    evil = b"cos\nsystem\n(S'touch %s'\ntR." % bytes(tmp_path / "evil")
    (job.path / "logs/nccl-rank-0").write_bytes(evil)
    assert job.call("dump")["nccl"] == {}
    assert not (tmp_path / "evil").exists()


def test_gpus_are_described(tmp_path: Path, new_job: NewJob) -> None:
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho '0, 100, 71234, 81559, 55, P0'\n")
    smi.chmod(0o755)
    path = f"{smi.parent}:{os.environ['PATH']}"
    job = new_job(Host(root=tmp_path / "r", locks=tmp_path / "l", env={"PATH": path}))
    begin(job, LATE)
    assert job.call("dump")["gpus"] == ["GPU 0: 100 % busy, 71234 of 81559 MiB, 55 C, P0"]


def test_signs_of_life_tell_whether_ranks_print_or_note_metrics(job: Job) -> None:
    begin(job, LATE)
    call, _ = job.host.open("attach", **job.key, offset=0)
    with call:
        assert call.stdout
        signs = (json.loads(line) for line in call.stdout if line.startswith(b'{"k":"alive"'))
        before, again = next(signs)["output"], next(signs)["output"]
        assert before == again
        (job.path / "metrics.jsonl").write_text('{"loss": 1}\n')
        assert next(signs)["output"] != before
        call.kill()


def test_a_job_that_never_was_is_refused(job: Job) -> None:
    assert job.call("dump")["error"]["kind"] == "unknown"
