"""Whatever would keep ranks from running is said before one starts, all at once."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.host import Host, Job, alive, texts, until

if TYPE_CHECKING:
    from collections.abc import Iterator

Problems = list[dict[str, str]]


def problems(job: Job, **fields: object) -> Problems:
    error = job.prepare(**fields)["error"]
    assert error["kind"] == "preflight"
    assert not job.path.exists()
    found: Problems = error["problems"]
    assert all(each[key] for each in found for key in ("what", "why", "do"))
    return found


def archive(folder: Path) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest(), data


def send(host: Host, folder: Path) -> str:
    sha, data = archive(folder)
    assert host.call("put_source", data=data, source=sha, size=len(data))["stored"]
    return sha


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "src"
    path.mkdir()
    return path


def test_everything_that_is_wrong_is_said_at_once(job: Job) -> None:
    found = problems(
        job, source="0" * 64, python="/no/python", check_files=["train.py", "/no/data"]
    )
    assert [each["what"] for each in found] == [
        f"source {'0' * 64} is not on this host",
        "python /no/python cannot be run",
        "train.py is missing",
        "/no/data is missing",
    ]
    assert ["source_dir holds it" in each["do"] for each in found[2:]] == [True, False]


def test_a_source_becomes_the_working_folder(job: Job, folder: Path) -> None:
    """B89: modes survive, and read-only folders do no harm."""
    for name, mode in {"run.sh": 0o755, "secret": 0o600, "train.py": 0o644}.items():
        (folder / name).write_text("#!/bin/sh\necho ran\n")
        (folder / name).chmod(mode)
    (folder / "locked").mkdir()
    (folder / "locked/file").write_text("x")
    (folder / "locked").chmod(0o555)
    (folder / "dangling").symlink_to("nowhere")
    sha = send(job.host, folder)
    assert job.host.call("offer", source=sha)["has_source"]
    job.prepare(source=sha, check_files=["train.py", "locked/file"])
    modes = {path.name: oct(path.lstat().st_mode & 0o777) for path in (job.path / "work").iterdir()}
    assert (modes["run.sh"], modes["secret"], modes["locked"]) == ("0o755", "0o600", "0o555")
    assert (job.path / "work/dangling").readlink() == Path("nowhere")
    job.start(processes=[{**job.rank(0, ""), "argv": ["./run.sh"]}], ranks=[0])
    assert texts(job.journal()) == ["ran"]


def test_a_source_that_was_damaged_on_its_way_is_not_stored(host: Host, folder: Path) -> None:
    sha, data = archive(folder)
    answer = host.call("put_source", data=b"x" + data[1:], source=sha, size=len(data))
    assert answer["error"]["kind"] == "incomplete"
    answer = host.call("put_source", data=data[:-1], source=sha, size=len(data))
    assert answer["error"]["message"] == "the source ended 1 bytes early"
    assert list((host.root / "sources").iterdir()) == []


def test_setup_runs_before_the_ranks_in_their_folder(job: Job) -> None:
    setup = "[[ $COLOUR == r* ]] && echo preparing; echo $COLOUR > made; chmod +x made"
    answer = job.prepare(
        setup=setup, setup_env={"COLOUR": "red"}, check_files=["made"], python="./made"
    )
    assert answer["ok"]
    job.start("print(open('made').read())")
    journal = job.journal()
    assert texts(journal, "setup") == ["preparing"]
    assert "red" in texts(journal)


def test_a_setup_that_fails_is_shown_by_its_last_lines(job: Job) -> None:
    setup = "for n in $(seq 100); do echo line $n; done; echo oops >&2; exit 3"
    (found,) = problems(job, setup=setup, check_files=["made"])
    assert found["what"] == "the setup script failed"
    lines = found["why"].splitlines()
    assert lines[0] == "it ended with exit code 3; its last lines:"
    assert (lines[1], lines[-1]) == ("line 52", "oops")


def test_a_setup_needs_bash_and_says_so(job: Job) -> None:
    (found,) = problems(job, setup="true", setup_env={"PATH": "/nowhere"})
    assert found["what"] == "the setup script cannot run"
    assert found["why"] == "bash cannot be executed: No such file or directory"


def test_a_setup_that_leaves_a_process_behind_does_not_hang(job: Job) -> None:
    """B28."""
    assert job.prepare(setup="sleep 600 & echo $! > pid")["ok"]
    job.start("pass")
    job.journal()
    assert not alive(int((job.path / "work/pid").read_text()))


def test_a_prepare_whose_connection_breaks_goes_on(job: Job) -> None:
    setup = "echo > begun; until [ -e go ]; do sleep 0.05; done"
    call, _ = job.host.open("prepare", **job.key, slots=["cpu-0"], setup=setup)
    until((job.path / "work/begun").exists)
    call.kill()
    call.communicate()
    (job.path / "work/go").touch()
    assert job.prepare()["already"]


def test_a_python_that_may_not_be_executed_is_told_from_a_missing_one(job: Job) -> None:
    (found,) = problems(job, python="/etc/passwd")
    assert found["why"] == "it exists but may not be executed"


def test_a_preflight_that_is_killed_is_not_waited_for(job: Job) -> None:
    call, _ = job.host.open("prepare", **job.key, slots=[], setup="echo $PPID > pid; sleep 600")
    pid = until(lambda: (path := job.path / "work/pid").exists() and path.read_text())
    subprocess.run(["kill", "-9", pid.strip()], check=True)
    assert b"the preflight did not finish" in call.communicate()[0]


def test_a_root_that_cannot_be_written_is_a_finding(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job.host.root = tmp_path / "file" / "root"
    (found,) = job.prepare()["error"]["problems"]
    assert found["what"].startswith("cannot write")
    assert found["why"] == "Not a directory"
    assert "work_dir" in found["do"]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own; its options are changed with `remount`."""
    path = tmp_path / "mount"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", 0) as file:
        while file.write(bytes(512)):
            pass


def test_a_full_disk_is_a_finding(job: Job, mount: Path) -> None:
    job.host.root = mount / "root"
    fill(mount / "filler")
    (found,) = problems(job)
    assert found["why"] == "No space left on device"


def test_a_source_that_does_not_fit_is_a_finding(job: Job, mount: Path, folder: Path) -> None:
    (folder / "big").write_bytes(bytes(600_000))
    job.host.root = mount / "root"
    sha = send(job.host, folder)
    (found,) = problems(job, source=sha)
    assert found["what"].startswith("cannot unpack the source")
    assert "No space left" in found["why"]


def test_a_program_on_a_file_system_without_programs_is_a_finding(
    job: Job, mount: Path, folder: Path
) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    remount(mount, "noexec")
    job.host.root = mount / "root"
    sha = send(job.host, folder)
    (found,) = problems(job, source=sha, check_files=["run.sh"])
    assert "noexec" in found["why"]


def test_a_disk_that_fills_up_loses_no_whole_line_of_the_journal(job: Job, mount: Path) -> None:
    job.host.root = mount / "root"
    job.prepare()
    job.start("import time; print('first'); time.sleep(600)")
    job.wait_for("first")
    filler = mount / "filler"
    fill(filler)
    call, _ = job.host.open("stop", **job.key, reason="enough", owner=None, wait=0)
    call.communicate()
    until(lambda: job.call("status")["survivors"] == 0)
    filler.unlink()
    assert job.journal()[-1]["k"] == "ended"


GPU = "GPU-aaaa"
SMI = f"""#!/bin/sh
case $1 in
--query-gpu=*) echo "{GPU}, 0, NVIDIA Test, 81920"; echo "GPU-bbbb, 1, NVIDIA, Test, [N/A]";;
*) echo "{GPU}, $PPID";;
esac
"""


@pytest.fixture
def nvidia_smi(job: Job, tmp_path: Path) -> None:
    """A host whose nvidia-smi answers as the real one does."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    job.host.env["PATH"] = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"


@pytest.mark.usefixtures("nvidia_smi")
def test_gpus_are_offered(job: Job) -> None:
    assert job.host.call("offer")["gpus"] == [
        {"uuid": GPU, "index": 0, "name": "NVIDIA Test", "memory_mb": 81920},
        {"uuid": "GPU-bbbb", "index": 1, "name": "NVIDIA,Test", "memory_mb": 0},
    ]


@pytest.mark.usefixtures("nvidia_smi")
def test_a_wanted_gpu_that_a_stranger_uses_is_a_finding(job: Job) -> None:
    (found,) = problems(job, slots=[f"gpu-{GPU}"])
    assert found["what"] == "a wanted GPU is in use"
    assert "of root" in found["why"] or "python3" in found["why"]
    assert job.prepare(slots=["gpu-GPU-bbbb"])["ok"]


HELD = f"""#!/bin/sh
echo "$1" >>"$0.log"
turn=$(grep -cFx -- "$1" "$0.log")
case $1 in
--query-gpu=uuid,memory.used*)
    if [ "$turn" -lt 3 ]; then echo "{GPU}, 70000, 81920"; else echo "{GPU}, 8, 81920"; fi;;
--query-gpu=*) echo "{GPU}, 0, NVIDIA Test, 81920";;
*) if [ "$turn" -lt 2 ]; then echo "{GPU}, 4194305"; fi;;
esac
"""


@pytest.mark.usefixtures("nvidia_smi")
def test_memory_that_the_last_job_still_holds_is_waited_for(job: Job, tmp_path: Path) -> None:
    """The driver names a process that has ended, then none, and then the memory is free."""
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(HELD)
    assert job.prepare(slots=[f"gpu-{GPU}"])["ok"]
    assert program.with_name("nvidia-smi.log").read_text().count("memory.used") == 3
