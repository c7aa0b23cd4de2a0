"""What stands around a node of Ray and its driver, with a Ray that is none."""

from __future__ import annotations

import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributed_training.agent.host import ray_rank
from tests.agent.host import until

if TYPE_CHECKING:
    from tests.agent.host import Job


def test_a_short_path_leads_to_the_files_of_a_node_and_is_shared_on_one_machine(tmp_path: Path):
    link = tmp_path / "link"
    for name in ("first", "second"):
        ray_rank.lead(str(link), str(tmp_path / name / "ray"))
    assert link.resolve() == tmp_path / "first/ray"


def test_the_source_comes_after_what_is_on_the_path_of_python():
    assert ray_rank.joined("/a:/b", "/work") == "/a:/b:/work"
    assert ray_rank.joined(None, "/work") == "/work"


def test_a_head_that_does_not_come_up_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        ray_rank.await_head(address, time.monotonic() + 5)
    with pytest.raises(SystemExit, match=f"has not come up at 127.0.0.1 port {address[1]} in time"):
        ray_rank.await_head(address, time.monotonic() - 1)


def test_the_short_path_goes_with_its_job_and_no_other(job: Job):
    own, other = (Path(f"/tmp/dt-ray-{secrets.token_hex(8)}") for _ in range(2))
    try:
        assert job.prepare()["ok"]
        own.symlink_to(job.path / "ray")
        other.symlink_to("/nowhere/ray")
        assert job.start("pass")["ok"]
        assert job.journal()[-1]["state"] == "success"
        until(lambda: not own.is_symlink())
        assert other.is_symlink()
    finally:
        other.unlink()
