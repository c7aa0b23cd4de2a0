"""Requests and answers, whatever surrounds them."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import distributed_training.agent
from distributed_training.agent import COMMAND, bundle, request
from tests.agent.host import Host, Job, texts

PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
FIT = [path for path in PYTHONS if int(path.parts[-3].split(".")[1]) >= 8]
OLD = [path for path in PYTHONS if path not in FIT]


HOST = Path(distributed_training.agent.__file__).with_name("host")
MODULES = sorted(path.relative_to(HOST.parent).as_posix() for path in HOST.rglob("*.py"))


def names(path: Path) -> str:
    return path.parts[-3]


@pytest.mark.parametrize("module", MODULES)
def test_the_agent_is_written_in_the_python_of_the_oldest_hosts(module: str) -> None:
    ast.parse((HOST.parent / module).read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("python", [*FIT, Path(sys.executable)], ids=names)
def test_every_module_loads_on_every_python_found(python: Path, tmp_path: Path) -> None:
    """From the archive, with nothing but Python's own library."""
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(bundle())
    loaded = [name[: -len(".py")].replace("/", ".") for name in MODULES]
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); import {', '.join(loaded)}"
    subprocess.run([python, "-I", "-S", "-c", program], check=True)


def test_the_archive_is_the_same_for_the_same_program() -> None:
    before = bundle()
    bundle.cache_clear()
    assert bundle() == before
    assert set(zipfile.ZipFile(io.BytesIO(before)).namelist()) == {"__main__.py", *MODULES}


def test_a_python_that_was_built_for_an_old_system_runs_a_job(job: Job, tmp_path: Path) -> None:
    """Such as conda's: it has no memfd_create."""
    python = tmp_path / "python3"
    lacking = "import os; vars(os).pop('memfd_create');"
    script = f'#!/bin/sh\nexec {sys.executable} "$1" "$2" "$3" "$4" "{lacking} $5"\n'
    python.write_text(script)
    python.chmod(0o755)
    job.host.env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    assert job.run("print('hello')")[-1]["state"] == "success"


@pytest.mark.parametrize("python", [*FIT, Path(sys.executable)], ids=names)
def test_the_agent_runs_a_job_on_every_python_found(job: Job, python: Path) -> None:
    job.host.env["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    journal = job.run("print('hello')", slots=["cpu-0"])
    assert journal[-1]["state"] == "success"
    assert job.call("status")["state"] == "ended"


def test_a_python_that_is_too_old_says_so() -> None:
    for python in OLD:
        env = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
        command = ["/bin/sh", "-c", COMMAND]
        done = subprocess.run(command, input=request("offer", "m"), capture_output=True, env=env)
        assert b"3.8 or newer is needed" in done.stderr
        assert done.returncode == 1


def test_what_a_login_script_prints_is_passed_over(host: Host) -> None:
    """B18."""
    host.profile = "echo welcome; printf 'no newline'; echo oops >&2; "
    assert host.call("offer")["ok"]


def test_an_unknown_verb_is_answered_with_the_known_ones(host: Host) -> None:
    error = host.call("dance")["error"]
    assert error["kind"] == "unknown_verb"
    assert "prepare" in error["message"]


@pytest.mark.parametrize(
    "line", ['{"marker":"abc", oops', '[{"marker":"abc"}]', '{"marker":"abc"}']
)
def test_a_malformed_request_is_answered(line: str) -> None:
    program = b"%d\n%b%b\n" % (len(bundle()), bundle(), line.encode())
    done = subprocess.run(
        ["/bin/sh", "-c", COMMAND], input=program, capture_output=True, check=True
    )
    assert done.stdout.startswith(b'\nabc\n{"ok":false,')


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".", "..", "a b"])
def test_a_job_cannot_be_named_out_of_its_folder(host: Host, name: str) -> None:
    answer = host.call("status", job=name, attempt=1, node=0)
    assert answer["error"]["kind"] == "bad_request"


def test_a_request_that_lacks_something_is_refused(host: Host) -> None:
    assert host.call("prepare", job="x")["error"]["message"] == "the request lacks attempt, node"


def test_a_fault_of_the_agent_is_answered_with_its_traceback(host: Host) -> None:
    error = host.call("put_source")["error"]
    assert error["kind"] == "internal"
    assert "Traceback" in error["message"]
    assert 'host/verbs/put_source.py", line' in error["message"]
    assert 'request["size"]' in error["message"]


def test_a_fault_of_a_supervisor_is_in_its_log_with_its_lines(job: Job) -> None:
    """These are in the archive, which the call that sent it has left behind."""
    assert job.prepare(grace_period="soon")["error"]["kind"] == "lost"
    log = (job.path / "agent.log").read_text()
    assert 'float(request.get("grace_period"' in log


def test_a_root_may_be_given_from_home(host: Host, tmp_path: Path) -> None:
    host.env["HOME"] = str(tmp_path)
    host.root = Path("~/here")
    assert host.call("offer")["root"] == str(tmp_path / "here")


def test_a_root_whose_path_is_too_long_for_a_socket_is_fine(tmp_path: Path) -> None:
    job = Job(Host(root=tmp_path / ("long" * 30) / "root", locks=tmp_path / "locks"))
    assert job.run("print('hello')")[-1]["state"] == "success"


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "de_DE.ISO-8859-1"])
def test_text_is_utf_8_whatever_the_locale_of_the_login(job: Job, locale: str) -> None:
    """In an 8-bit locale Python would otherwise give ranks other bytes, or none at all."""
    assert "-X utf8" in COMMAND
    job.host.env["LC_ALL"] = locale
    job.prepare()
    rank = job.rank(0, "import os; print(os.environb[b'WORD'].decode())", WORD="é\N{SNOWMAN}")
    rank["env"]["PYTHONUTF8"] = "1"
    job.start(processes=[rank], ranks=[0])
    assert texts(job.journal()) == ["é\N{SNOWMAN}"]


def test_a_stop_signal_that_is_none_is_refused(job: Job) -> None:
    error = job.prepare(stop_signal="SIGNOPE")["error"]
    assert (error["kind"], "'SIGNOPE'" in error["message"]) == ("bad_request", True)
