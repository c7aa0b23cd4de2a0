"""What a host tells of its fitness, how it is kept clean, and how it is taken out of use."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.agent.host import Host, Job, Watcher, until
from tests.agent.test_collect import age

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.conftest import NewJob


def test_an_offer_tells_how_fit_the_host_is(host: Host) -> None:
    offer = host.call("offer")
    assert offer["shm_free"] > 0
    assert offer["gpu_devices"] == len(list(Path("/dev").glob("nvidia[0-9]*")))
    assert offer["memlock"] is None or offer["memlock"] > 0


def test_versions_are_told_without_importing_anything(host: Host, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "torch-2.6.0.dist-info").mkdir(parents=True)
    (site / "torch-2.6.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.6.0+cu124\n")
    (site / "torch.py").write_text("raise SystemExit('imported')")
    host.env["PYTHONPATH"] = str(site)
    assert host.call("examine")["versions"].items() >= {("torch", "2.6.0+cu124")}
    assert host.call("examine", python="/no/python")["versions"] == {}


# --- drained and faulty


def test_a_drained_host_says_so_to_every_user_until_it_is_given_back(host: Host) -> None:
    host.call("mark", drained={"by": "ada", "reason": "fans"})
    other = Host(root=host.root / "of-another-user", locks=host.locks)
    drained = other.call("offer")["drained"]
    assert (drained["by"], drained["reason"]) == ("ada", "fans")
    assert abs(drained["since"] - time.time()) < 60
    other.call("mark", drained=None)
    assert "drained" not in host.call("offer")


def test_marks_do_not_disturb_each_other(host: Host) -> None:
    host.call("mark", drained={"reason": "a much longer text than the other one has"})
    host.call("mark", fault={"reason": "x"}, drained=None)
    assert host.call("offer")["fault"]["reason"] == "x"
    assert "drained" not in host.call("offer")


# --- what ended jobs leave


def test_each_job_says_for_how_long_it_is_kept(job: Job, new_job: NewJob) -> None:
    other = new_job()
    for each, days in ((job, 1), (other, 30)):
        assert each.prepare(keep_days=days)["ok"]
        each.start("pass")
        each.journal()
        age(each.path / "journal.jsonl", 8)
    dry = job.host.call("gc", dry_run=True)
    assert dry["removed"] == [job.mark]
    assert job.path.exists()
    assert job.host.call("gc")["removed"] == [job.mark]
    assert (job.path.exists(), other.path.exists()) == (False, True)


def test_beyond_the_cap_the_oldest_go_first(job: Job, new_job: NewJob) -> None:
    jobs = [job, new_job(), new_job()]
    for days, each in enumerate(reversed(jobs)):
        each.run("open('big', 'w').write('x' * 1_000_000)")
        age(each.path / "journal.jsonl", days)
    answer = job.host.call("gc", keep_days=7, max_bytes=2_500_000)
    assert answer["removed"] == [jobs[0].mark]
    assert answer["left"] < 2_500_000


def test_only_one_cleans_up_at_a_time(job: Job) -> None:
    job.run("pass")
    with (job.host.root / "housekeeping").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        error = job.host.call("gc", keep_days=0)["error"]
    assert (error["kind"], job.path.exists()) == ("busy", True)
    assert job.host.call("gc", keep_days=0)["removed"] == [job.mark]


def test_a_source_that_an_offer_promises_stays(host: Host) -> None:
    path = host.root / "sources" / f"{'0' * 64}.tar"
    path.parent.mkdir(parents=True)
    path.touch()
    age(path, 8)
    assert host.call("offer", source="0" * 64)["has_source"]
    assert host.call("gc")["removed"] == []


def test_a_start_cleans_up_beside_it_now_and_then(job: Job, new_job: NewJob) -> None:
    job.run("pass")
    age(job.path / "journal.jsonl", 8)
    stamp = job.host.root / "housekeeping"
    until(stamp.exists)
    age(stamp, 1)
    new_job().prepare()
    until(lambda: not job.path.exists())


def test_a_start_leaves_what_has_just_ended(job: Job, new_job: NewJob) -> None:
    """Its results may not have been asked for."""
    assert job.prepare(keep_days=0)["ok"]
    job.start("pass")
    job.journal()
    stamp = job.host.root / "housekeeping"
    until(stamp.exists)
    age(stamp, 1)
    new_job().prepare()
    until(lambda: time.time() - stamp.stat().st_mtime < 60)
    assert job.path.exists()


@pytest.fixture
def segment() -> Iterator[Path]:
    """The name of a segment as Python's shared memory would make one."""
    path = Path(f"/dev/shm/psm_{secrets.token_hex(4)}")
    yield path
    path.unlink(missing_ok=True)


def test_segments_of_killed_ranks_are_removed(job: Job, segment: Path) -> None:
    job.run(f"import os; open('{segment}', 'w').write('x'); os.kill(os.getpid(), 9)")
    assert not segment.exists()


def test_segments_that_somebody_uses_are_kept(job: Job, segment: Path) -> None:
    job.prepare()
    with segment.open("w"):
        job.start("pass")
        job.journal()
        assert segment.exists()


def test_files_of_an_mpirun_are_kept_while_one_of_the_same_user_runs(
    job: Job, tmp_path: Path
) -> None:
    sessions, mpirun = Path(f"/tmp/ompi.{secrets.token_hex(4)}"), tmp_path / "mpirun"
    shutil.copy("/bin/sleep", mpirun)
    with subprocess.Popen([mpirun, "600"]) as other:
        try:
            job.run(f"import os; os.mkdir('{sessions}')")
            assert sessions.exists()
        finally:
            other.kill()
            sessions.rmdir()


# --- looking on


def test_who_only_looks_does_not_keep_a_job_alive(job: Job) -> None:
    job.prepare(orphan_timeout=2)
    job.start("import time; time.sleep(600)")
    looking = Watcher(job, offset=0, renews=False)
    ended = []
    for record in looking.lines():
        looking.say("here")
        ended.append(record)
    assert ended[-1]["reason"] == "orphaned"
    assert not (job.path / "acknowledged").exists()
    looking.cut()


def test_the_state_tells_since_when_nobody_watches(job: Job) -> None:
    job.prepare()
    watcher = Watcher(job)
    watcher.say("ack 0")
    until((job.path / "acknowledged").exists)
    os.utime(job.path / "acknowledged", (1e9, 1e9))
    watcher.cut()
    assert job.call("status")["watched"] == 1e9
