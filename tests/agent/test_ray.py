"""What stands around a node of Ray and its driver, with a Ray that is none."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
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


RAY_START = """
import os, pathlib, sys, time
folder, times = pathlib.Path(os.environ["FOLDER"]), pathlib.Path("times")
count = len(times.read_text()) if times.exists() else 0
times.write_text("." * (count + 1))
if count == 0:
    sys.exit("The current node timed out during startup.")
(folder / "ray_current_cluster").touch()
if count == 1:
    print("up", sys.argv[1:], os.environ["PYTHONPATH"].split(":")[-1] == os.getcwd(), flush=True)
    time.sleep(float(os.environ["LASTS"]))
sys.exit(3)
"""


@pytest.fixture
def node(tmp_path: Path):
    """Run a node whose Ray fails at first, for so many seconds."""
    fake = tmp_path / "fake/ray/scripts"
    fake.mkdir(parents=True)
    (fake / "scripts.py").write_text(RAY_START)
    folder = tmp_path / "short"
    told = {"folder": str(folder), "wait_for": None, "client_port": None, "start_timeout": 60}
    code = "from distributed_training.agent.host.ray_rank import run; import sys; run(sys.argv[1:])"
    path = os.pathsep.join((str(fake.parents[1]), str(Path(__file__).parents[2])))

    def begin(lasts: float) -> subprocess.Popen[str]:
        own = {"DT_NODE_DIR": str(tmp_path), "FOLDER": str(folder), "LASTS": str(lasts)}
        return subprocess.Popen(
            [sys.executable, "-c", code, "node", json.dumps(told), "--head"],
            env={**os.environ, **own, "PYTHONPATH": path},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )

    return begin


def test_a_node_that_does_not_come_up_at_once_is_started_again_and_no_other(node):
    process = node(0.1)
    assert process.communicate()[0] == "up ['start', '--head'] True\n"
    assert process.returncode == 3


def test_a_signal_ends_ray_and_the_node_with_it(node):
    process = node(600)
    assert process.stdout.readline().startswith("up")
    process.terminate()
    assert process.wait() == 1


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
