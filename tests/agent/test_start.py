"""Ranks start detached, all or none, in exactly the environment that they were given."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.host import Job, alive, texts, until

if TYPE_CHECKING:
    from tests.agent.conftest import NewJob

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
NASTY = {
    "LINES": "a\nb\n",
    "QUOTES": """'"`$HOME\\ ^ %s {x}""",
    "EQUALS": "=a=b=",
    "BLANKS": "  01 02  ",
    "EMPTY": "",
    "UNICODE": "é\N{SNOWMAN}",
    "MARKER": "\t\x01",
}


def environment(job: Job, **fields: object) -> dict[str, str]:
    """Run a rank that shows its environment."""
    rank = {**job.rank(0, SHOW), **fields}
    assert job.start(processes=[rank], ranks=[0], scrub=["SLURM_*", "RANK"])["ok"]
    return dict(json.loads("".join(texts(job.journal()))))


def test_a_program_finds_the_end_of_stdin(job: Job) -> None:
    """B28."""
    assert texts(job.run("import sys; print(repr(sys.stdin.read()))")) == ["''"]


def test_a_start_returns_while_the_rank_prints_for_ever(job: Job) -> None:
    """B28, B30: the call's pipes are closed, the rank has no terminal, and goes on."""
    job.prepare()
    pid = job.start("import time\nwhile True: print('on'); time.sleep(0.1)")["pids"]["rank-0"]
    links = [Path(f"/proc/{agent}/fd/{fd}").readlink() for agent in job.agents() for fd in (0, 1)]
    assert set(links) == {Path("/dev/null")}
    assert os.getsid(pid) == pid
    before = len(job.events("log"))
    until(lambda: len(job.events("log")) > before + 3)
    assert alive(pid)


def test_values_arrive_byte_by_byte(job: Job) -> None:
    """B20, B57."""
    job.prepare()
    seen = environment(job, env=NASTY)
    assert {name: seen.get(name) for name in NASTY} == NASTY


def test_variables_of_other_launchers_are_gone(job: Job) -> None:
    job.host.env = {"SLURM_JOB_ID": "7", "RANK": "9", "MY_OWN": "kept"}
    job.prepare()
    seen = environment(job, env={"WORLD_SIZE": "1"})
    assert "SLURM_JOB_ID" not in seen
    assert "RANK" not in seen
    assert (seen["MY_OWN"], seen["WORLD_SIZE"]) == ("kept", "1")
    assert seen["DT_NODE_DIR"] == str(job.path)


def test_defaults_yield_to_what_the_host_has_set(job: Job) -> None:
    job.host.env = {"OMP_NUM_THREADS": "7"}
    job.prepare()
    seen = environment(job, env={}, defaults={"OMP_NUM_THREADS": "1", "OTHER": "2"})
    assert (seen["OMP_NUM_THREADS"], seen["OTHER"]) == ("7", "2")


def test_a_secret_is_on_no_disk_and_in_no_command_line(job: Job) -> None:
    """B98."""
    secret = "hf_" + os.urandom(16).hex()
    job.prepare(setup="true", setup_env={"HF_TOKEN": secret})
    rank = job.rank(0, "import time; time.sleep(600)", HF_TOKEN=secret)
    pids = [job.start(processes=[rank], ranks=[0])["pids"]["rank-0"], *job.agents()]
    for path in job.host.root.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    for pid in pids:
        assert secret not in Path(f"/proc/{pid}/cmdline").read_text()


def test_what_the_agent_writes_is_for_its_user_alone(job: Job) -> None:
    job.run("print('hello')")
    modes = {path.stat().st_mode & 0o077 for path in job.host.root.rglob("*")}
    assert modes == {0}
    assert job.host.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-program"], "No such file"),
        (["/etc/passwd"], "Permission denied"),
        ([], "list index"),
        (["a\0b"], "null byte"),
        ([1], "expected str"),
    ],
)
def test_if_one_program_cannot_be_executed_nothing_runs(
    job: Job, new_job: NewJob, argv: list[str], why: str
) -> None:
    job.prepare(slots=["cpu-0"])
    good, bad = job.rank(0, "import time; time.sleep(600)"), job.rank(1, "")
    bad["argv"] = argv
    error = job.start(processes=[good, bad], ranks=[0, 1])["error"]
    assert (error["kind"], error["name"]) == ("exec_failed", "rank-1")
    assert why in error["message"]
    assert job.call("status")["survivors"] == 0
    assert new_job().prepare(slots=["cpu-0"])["ok"]


def test_starting_twice_is_starting_once(job: Job) -> None:
    job.prepare()
    first = job.start("import time; time.sleep(1)")
    assert job.start("raise SystemExit(1)") == {**first, "already": True}
    job.journal()
    until(lambda: not any(map(alive, job.agents())))
    assert job.start("raise SystemExit(1)") == {**first, "already": True}


def test_a_job_that_was_not_prepared_cannot_start(job: Job) -> None:
    error = job.start("pass")["error"]
    assert error["kind"] == "not_prepared"
    assert "never been prepared" in error["message"]


def test_a_request_without_processes_harms_nobody(job: Job) -> None:
    job.prepare()
    assert job.call("start", ranks=[0])["error"]["kind"] == "bad_request"
    assert job.start("pass")["ok"]


def test_a_program_is_found_on_its_own_path(job: Job) -> None:
    (job.host.root.parent / "hello").symlink_to("/bin/echo")
    job.prepare()
    rank = {**job.rank(0, ""), "argv": ["hello", "you"]}
    rank["env"] = {"PATH": str(job.host.root.parent)}
    job.start(processes=[rank], ranks=[0])
    assert texts(job.journal()) == ["you"]


def test_sixty_four_ranks_fit_on_a_node(job: Job) -> None:
    job.prepare()
    ranks = [{**job.rank(n, ""), "argv": ["/bin/sh", "-c", f"echo {n}"]} for n in range(64)]
    job.start(processes=ranks, ranks=list(range(64)))
    journal = job.journal()
    assert journal[-1]["state"] == "success"
    assert [texts(journal, n) for n in range(64)] == [[str(n)] for n in range(64)]


def test_ranks_work_in_the_work_folder(job: Job) -> None:
    assert texts(job.run("import os; print(os.getcwd())")) == [str(job.path / "work")]


def test_ranks_keep_the_umask_of_the_login(job: Job) -> None:
    job.host.profile = "umask 027; "
    assert texts(job.run("import os; print(oct(os.umask(0)))")) == ["0o27"]


def test_a_rank_gets_default_signals(job: Job) -> None:
    """A shell starts background commands with SIGINT ignored; ranks must not inherit that."""
    program = "import signal; print([s.name for s in signal.Signals if s not in (32, 33)"
    program += " and signal.getsignal(s) == signal.SIG_IGN])"
    assert texts(job.run(program)) == ["['SIGPIPE', 'SIGXFSZ']"]  # Python's own doing


@pytest.mark.parametrize(
    ("words", "env", "what"),
    [
        (["small"], {"LARGE": "x" * 200_000}, "variable LARGE alone has 195; Linux allows .* 128"),
        (["x" * 200_000], {}, "argument 1 alone has 195;"),
        (["x" * 100_000] * 100, {}, "arguments and variables have 97.. KiB"),
    ],
)
def test_what_is_too_large_is_named_with_its_size(
    job: Job, words: list[str], env: dict[str, str], what: str
) -> None:
    job.prepare()
    rank = {**job.rank(0, ""), "argv": ["true", *words], "env": env}
    error = job.start(processes=[rank], ranks=[0])["error"]
    assert re.search(f"cannot execute true: .*{what}.*into a file in source_dir", error["message"])


def test_a_setup_that_is_too_large_is_named_with_its_size(job: Job) -> None:
    (found,) = job.prepare(setup="true", setup_env={"LARGE": "x" * 200_000})["error"]["problems"]
    assert "variable LARGE alone has 195" in found["why"]
