"""A rank that the kernel ended for want of memory is told from one that somebody killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.host import exits
from tests.cgroup import entering, memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.conftest import NewJob
    from tests.agent.host import Host, Job

HUNGRY = "x = b'x' * (400 << 20)"
WAITING = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
KILLED = "import os; os.kill(os.getpid(), 9)"
LIMIT = 128  # MiB


@pytest.fixture
def small(host: Host) -> Iterator[Path]:
    """The cgroup with little memory that the host's jobs run in."""
    with memory_limit(LIMIT) as folder:
        host.prefix = entering(folder)
        yield folder


@pytest.fixture
def small_job(small: Path, new_job: NewJob) -> Job:
    """A job in that cgroup, which goes after it."""
    return new_job()


def test_an_oom_kill_is_recognised_with_its_limit(small_job: Job, small: Path) -> None:
    """Case B32."""
    (ended,) = exits(small_job.run(HUNGRY)).values()
    assert (ended["signal"], ended["oom"]) == ("SIGKILL", True)
    told = ended["evidence"][-1]
    assert f"the memory limit is {LIMIT} MiB (cgroup {small})" in told
    assert "MiB were used" in told


def test_an_oom_kill_below_a_shell_is_recognised(small_job: Job) -> None:
    small_job.prepare()
    rank = small_job.rank(0, HUNGRY)
    python, *options = rank["argv"]
    shell = ["/bin/sh", "-c", '"$@"; exit $?', "sh", python, *options]
    assert small_job.start(processes=[{**rank, "argv": shell}], ranks=[0])["ok"]
    (ended,) = exits(small_job.journal()).values()
    assert (ended["code"], ended["oom"]) == (137, True)


@pytest.mark.usefixtures("small")
def test_a_job_is_not_blamed_for_the_oom_kill_of_another_in_its_cgroup(new_job: NewJob) -> None:
    one, other = new_job(), new_job()
    other.prepare()
    other.start(f"{WAITING}\n{KILLED}")
    assert exits(one.run(HUNGRY))[0]["oom"]
    (other.path / "work/go").touch()
    assert not exits(other.journal())[0]["oom"]


def test_a_kill_without_any_want_of_memory_is_none(small_job: Job) -> None:
    ended = exits(small_job.run(KILLED))[0]
    assert (ended["signal"], ended["oom"], ended["evidence"]) == ("SIGKILL", False, [])
