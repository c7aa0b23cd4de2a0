"""What an agent knows of MPIs, and what it tells the ranks below one."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.agent.host.errors import Refusal
from distributed_training.agent.host.mpi import find_mpirun, told_by
from distributed_training.agent.host.mpi_rank import command
from tests.agent.host import Job, texts, until

if TYPE_CHECKING:
    from pathlib import Path

HYDRA = """HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
"""


def make_mpirun(folder: Path, says: str, name: str = "mpirun") -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", ("openmpi", "4.1.4")),
        ("Open MPI v5.0.11, package: Open MPI user@localhost", ("openmpi", "5.0.11")),
        ("mpirun (OpenRTE) 3.1.3", ("openmpi", "3.1.3")),
        (HYDRA, ("mpich", "5.0.2")),
        ("MPICH Version:      4.0.2\nMPICH Release date: x", ("mpich", "4.0.2")),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626",
            ("intelmpi", "2021.18.1"),
        ),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS", ("intelmpi", "2021.18.1")),
        ("srun 23.02", ("", "")),
    ],
)
def test_an_mpi_is_known_by_what_it_says_of_itself(text: str, expected: tuple[str, str]) -> None:
    assert told_by(text) == expected


def test_mpirun_is_looked_for_beside_the_interpreter_and_then_on_the_path(tmp_path: Path) -> None:
    make_mpirun(tmp_path / "path", "mpirun (Open MPI) 4.1.4")
    env = {"PATH": f"{tmp_path}/path:{os.defpath}"}
    wanted: dict[str, Any] = {
        "program": None,
        "python": f"{tmp_path}/venv/bin/python",
        "path": None,
    }
    assert find_mpirun(wanted, env)["version"] == "4.1.4"
    (tmp_path / "venv").mkdir()
    beside = make_mpirun(tmp_path / "venv/bin", HYDRA)
    assert find_mpirun(wanted, env) == {
        "program": str(beside), "family": "mpich", "version": "5.0.2",
    }  # fmt: skip


def test_an_mpirun_that_is_not_there_or_unknown_says_so(tmp_path: Path) -> None:
    wanted = {"program": "/opt/none/mpirun", "python": "python3"}
    assert "there is no /opt/none/mpirun" in find_mpirun(wanted, {"PATH": "/usr/bin"})["why"]
    other = make_mpirun(tmp_path / "bin", "srun 23.02")
    found = find_mpirun({"program": str(other), "python": "python3"}, {"PATH": os.defpath})
    assert found["why"] == f"{other} --version says srun 23.02"


@pytest.mark.parametrize(
    ("rank", "size", "told"),
    [
        (3, 4, "it on this host, where the plan has 0, 1: take out"),
        (1, 1, "1 ranks and not 4: take out"),
    ],
    ids=["elsewhere", "alone"],
)
def test_a_rank_that_the_plan_does_not_have_here_is_refused(
    rank: int, size: int, told: str
) -> None:
    here = {n: {"argv": ["x"], "env": {"WORLD_SIZE": "4"}, "set": []} for n in (0, 1)}
    assert command(here, {"rank": 1, "size": 4}) == {"ok": True, **here[1]}
    with pytest.raises(Refusal, match=told):
        command(here, {"rank": rank, "size": size})


def prepared(job: Job, **fields: Any) -> str:
    mpirun = {"program": "/usr/bin/mpirun", "family": "openmpi", "version": "4.1.4"}
    return str(job.prepare(mpirun=mpirun, **fields)["dir"])


def launched(job: Job, program: str, *, ranks: int = 2, before: str = "", **fields: Any) -> None:
    """Start what is to an agent what mpirun is, whose ranks come for their command."""
    folder = prepared(job, **fields)
    starts = "\n".join(
        f"OMPI_COMM_WORLD_RANK={n} OMPI_COMM_WORLD_SIZE={ranks} OMPI_MCA_x=mpi SECRET=launchers "
        f"python3 -I {folder}/agent.pyz rank &"
        for n in range(ranks)
    )
    launcher = {
        "name": "launcher",
        "rank": None,
        "env": {},
        "argv": ["bash", "-c", f"{before}\n{starts}\nwait"],
    }
    waiting = [
        {**job.rank(n, program, WORLD_SIZE=str(ranks), OWN="a\nb"), "started_by": "launcher"}
        for n in range(ranks)
    ]
    answer = job.start(processes=[launcher, *waiting], ranks=list(range(ranks)))
    assert answer["ok"], answer


def test_ranks_come_for_their_command_and_get_only_the_mpi_s_own_variables(job: Job) -> None:
    launched(job, "import os; print([os.environ.get(x) for x in ('OWN', 'OMPI_MCA_x', 'SECRET')])")
    journal = job.journal()
    lines = [each["m"] for each in journal if each["k"] == "log" and each["r"] in (0, 1)]
    assert lines == [r"['a\nb', 'mpi', None]"] * 2
    assert journal[-1]["state"] == "success"


def test_a_rank_holds_the_locks_of_its_node_although_its_launcher_has_closed_them(
    job: Job,
) -> None:
    program = """
import os
links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
print({os.path.basename(os.readlink(link)) for link in links if os.path.exists(link)})
"""
    launched(job, program, ranks=1, before="exec 200>&- 201>&-", slots=["cpu-0"])
    assert "'cpu-0.lock'" in texts(job.journal())[0]


def test_a_rank_that_fails_is_not_shown_to_its_mpirun_before_the_others_were_asked_to_end(
    job: Job,
) -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print("saved"), sys.exit(0)))
if os.environ["RANK"] == "1":
    time.sleep(0.5); sys.exit(3)
time.sleep(600)
"""
    launched(job, program)
    journal = job.journal()
    assert any(each["k"] == "log" and each["m"] == "saved" for each in journal)
    failed = [each for each in journal if each["k"] == "exit" and not each["by_us"]]
    assert [(each["rank"], each["code"]) for each in failed] == [(1, 3)]


def test_a_command_for_another_host_is_journalled_and_ends_as_it_did_there(job: Job) -> None:
    relay = f"{job.path}/relay -x gpu2 echo '\"$HOME\"' > {job.path}/out; echo $? >> {job.path}/out"
    launched(job, "import time; time.sleep(1)", before=relay)
    asked = until(lambda: job.events("relay"))[0]
    assert (asked["host"], asked["command"]) == ("gpu2", 'echo "$HOME"')
    for _ in range(2):  # two watchers may tell it
        assert job.call("relayed", id=asked["id"], code=7)["ok"]
    assert job.journal()[-1]["state"] == "success"
    assert (job.path / "out").read_text() == "7\n"


def test_a_command_of_another_host_runs_once_among_the_job_s_processes(job: Job) -> None:
    prepared(job)
    daemon = {"name": "daemon", "rank": None, "argv": ["sh", "-c"], "env": {"A": "b"}}
    rank = {**job.rank(0, "import time; time.sleep(1)", WORLD_SIZE="1"), "started_by": "launcher"}
    job.start(processes=[{**daemon, "started_by": "relay"}, rank], ranks=[0])
    wanted = (
        f"echo $A; OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 python3 {job.path}/agent.pyz rank"
    )
    first = job.call("relay", id="1", command=wanted)
    assert first["ok"]
    assert job.call("relay", id="1", command=wanted)["pid"] == first["pid"]
    journal = job.journal()
    assert [each["m"] for each in journal if each["k"] == "log"] == ["b"]
    assert journal[-1]["state"] == "success"
