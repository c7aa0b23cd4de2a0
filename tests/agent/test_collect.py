"""What is asked of a job after, or beside, its run: files, results, status, cleaning."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.host import Host, Job, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.conftest import NewJob

FILES = """
    import os
    os.makedirs("outputs/deep/er")
    open("outputs/model.bin", "wb").write(bytes(range(256)))
    open("outputs/deep/er/a.txt", "w").write("a")
    os.symlink("deep", "outputs/link")
    os.mkfifo("outputs/pipe")
    open("outputs/hidden", "w").close(); os.chmod("outputs/hidden", 0)
    open("it's é.txt", "w").write("odd")
"""


def fetched(job: Job, *paths: str, base: str = "work") -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the answer and the content of every file in the tar."""
    answer, data = job.host.stream("fetch", **job.key, paths=paths, base=base)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as tar:
        return answer, {
            member.name: file.read()
            for member in tar
            if member.isfile() and (file := tar.extractfile(member))
        }


def test_files_and_folders_are_fetched(job: Job) -> None:
    job.run(FILES)
    answer, files = fetched(job, "outputs/", "it's é.txt", "*.pt", "nothing")
    assert answer == {
        "ok": True,
        "found": {"outputs/": "outputs", "it's é.txt": "it's é.txt", "nothing": "nothing"},
        "files": len(files),
        "faults": [
            {"path": "outputs/pipe", "why": "it is neither a file nor a folder"},
            {"path": "*.pt", "why": "nothing matches"},
            {"path": "nothing", "why": "No such file or directory"},
        ],
    }
    assert files["outputs/model.bin"] == bytes(range(256))
    assert files["outputs/deep/er/a.txt"] == b"a"
    assert files["it's é.txt"] == b"odd"
    assert "outputs/pipe" not in files


def test_patterns_and_absolute_paths_are_fetched(job: Job, tmp_path: Path) -> None:
    job.run(FILES)
    (tmp_path / "elsewhere").write_text("far")
    answer, files = fetched(job, "outputs/deep/**/*.txt", str(tmp_path / "else*"), "outputs/link")
    assert answer["found"] == {
        "outputs/deep/er/a.txt": "outputs/deep/er/a.txt",
        f"{tmp_path}/elsewhere": f"{tmp_path}/elsewhere"[1:],
        "outputs/link": "outputs/link",
    }
    assert files[f"{tmp_path}/elsewhere"[1:]] == b"far"
    assert files["outputs/link/er/a.txt"] == b"a"


def test_whole_logs_are_fetched(job: Job) -> None:
    job.run("print('all of it')")
    _, files = fetched(job, "*", base="logs")
    assert files["rank-0.log"] == b"all of it\n"


def test_a_file_that_grows_is_fetched_as_it_was(job: Job) -> None:
    job.prepare()
    job.start("while True: print('more and more and more')")
    until(lambda: (job.path / "logs/rank-0.log").stat().st_size > 1 << 20)
    _, files = fetched(job, "rank-0.log", base="logs")
    assert len(files["rank-0.log"]) > 1 << 20


@pytest.mark.parametrize(
    ("text", "value", "error"),
    [
        (None, None, None),
        ('{"acc": 0.9}', {"acc": 0.9}, None),
        ("{acc", None, "is not JSON"),
        ("x" * (1 << 21), None, "the limit is"),
    ],
    ids=["none", "good", "broken", "huge"],
)
def test_a_result_is_read_or_its_fault_is_told(
    job: Job, text: str | None, value: object, error: str | None
) -> None:
    job.prepare()
    if text is not None:
        (job.path / "result.json").write_text(text)
    answer = job.call("result")
    assert answer["result"] == value
    assert (error or "") in (answer["result_error"] or "")
    assert bool(error) == bool(answer["result_error"])


def test_a_disk_that_was_full_at_the_end_is_told(job: Job) -> None:
    job.host.root.mkdir(parents=True)
    small = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(job.host.root)]
    subprocess.run(small, check=True)
    try:
        fill = "import os; os.write(1, b'first\\n')\nwith open('big', 'wb', 0) as file:\n"
        journal = job.run(f"{fill}    while file.write(bytes(4096)) == 4096: pass")
    finally:
        subprocess.run(["umount", "--lazy", str(job.host.root)], check=True)
    notes = [each["m"] for each in journal if each["k"] == "note"]
    assert any(f"WARNING: {job.path}: " in note for note in notes), journal


def test_the_last_value_of_each_metric_counts(job: Job) -> None:
    job.prepare()
    lines = ['{"loss": 2, "lr": 0.1}', "oops", "[1]", '{"loss": 1}', '{"acc"']
    (job.path / "metrics.jsonl").write_text("\n".join(lines))
    assert job.call("result")["metrics"] == {"loss": 1, "lr": 0.1}


def test_the_state_of_a_job_can_be_asked_for_at_any_time(job: Job) -> None:
    assert job.call("status")["state"] == "unknown"
    job.prepare(label={"dag": "d"}, slots=["cpu-0"])
    assert job.call("status")["state"] == "prepared"
    pid = job.start("import time; time.sleep(600)")["pids"]["rank-0"]
    status = job.call("status")
    assert status["state"] == "running"
    assert status["ranks"] == {"0": {"state": "running", "pid": pid, "code": None, "signal": None}}
    assert (status["agents"], status["survivors"]) == (2, 1)
    job.call("stop", reason="enough", owner=None, wait=30)
    status = job.call("status")
    assert (status["state"], status["cancelled"]) == ("ended", "enough")
    assert status["ranks"]["0"]["signal"] == "SIGTERM"
    assert (status["survivors"], status["label"]) == (0, {"dag": "d"})


def test_all_jobs_of_a_host_are_listed(host: Host, new_job: NewJob) -> None:
    assert host.call("status")["jobs"] == []
    jobs = [new_job() for _ in range(3)]
    for job in jobs:
        job.prepare()
    listed = host.call("status")["jobs"]
    assert sorted(each["job"] for each in listed) == sorted(job.key["job"] for job in jobs)
    assert {(each["attempt"], each["node"], each["state"]) for each in listed} == {
        (1, 0, "prepared")
    }


def test_old_jobs_are_removed_and_live_ones_kept(job: Job, new_job: NewJob) -> None:
    """B89: read-only folders too."""
    job.run(
        "import os; os.mkdir('locked'); open('locked/f', 'w').write('x'); os.chmod('locked', 0o555)"
    )
    fresh, live = new_job(), new_job()
    fresh.run("pass")
    live.prepare()
    age(job.path / "journal.jsonl", 8)
    age(live.path / "journal.jsonl", 8)
    answer = job.host.call("gc", keep_days=7)
    assert answer["removed"] == [job.mark]
    assert answer["bytes"] > 0
    assert not job.path.parents[1].exists()
    assert fresh.path.exists()
    assert live.path.exists()


def test_a_job_that_is_just_being_made_is_not_taken_for_a_lost_one(job: Job) -> None:
    job.path.mkdir(parents=True)
    job.host.call("gc", keep_days=0, keep_sources_days=0)
    assert list(job.path.iterdir()) == []


def test_jobs_are_made_and_old_ones_removed_at_the_same_time(job: Job, new_job: NewJob) -> None:
    jobs = [new_job() for _ in range(5)]
    making = [each.host.open("prepare", **each.key, slots=[])[0] for each in jobs]
    cleaning = [job.host.open("gc", keep_days=0, keep_sources_days=0)[0] for _ in range(5)]
    assert all(b'"ok":true' in call.communicate()[0] for call in [*making, *cleaning])
    assert all(each.call("status")["state"] == "prepared" for each in jobs)


def test_old_sources_are_removed(host: Host) -> None:
    sources = host.root / "sources"
    sources.mkdir(parents=True)
    for name in ("old.tar", "new.tar"):
        (sources / name).write_bytes(b"x" * 100)
    age(sources / "old.tar", 8)
    answer = host.call("gc", keep_days=7)
    assert answer == {"ok": True, "removed": ["old.tar"], "bytes": 100, "left": 100}


def age(path: Path, days: float) -> None:
    """Make a file older than it is."""
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def test_an_offer_tells_what_a_plan_needs(host: Host) -> None:
    offer = host.call("offer")
    assert offer["addresses"]["127.0.0.1"] == "lo"
    assert offer["disk_free"] > 0
    assert offer["cpus"] == len(os.sched_getaffinity(0))
    assert abs(offer["clock"] - time.time()) < 60
    assert not offer["has_source"]
    assert not host.root.exists()


def test_an_offer_tells_how_ssh_came_in(host: Host) -> None:
    host.env["SSH_CONNECTION"] = "10.0.0.254 50000 10.0.0.1 22"
    assert host.call("offer")["ssh_address"] == "10.0.0.1"
