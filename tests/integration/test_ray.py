"""Real Ray on real hosts: a cluster of the job's own, which leaves nothing behind."""

from __future__ import annotations

import pytest

from dev.setup import hosts_python
from distributed_training.errors import PreflightFailed
from distributed_training.plan import RayOptions

SMALL = RayOptions(object_store_memory=100_000_000)


@pytest.fixture(scope="session")
def python():
    """The Python of an environment with Ray that the hosts' users can run."""
    return str(hosts_python("ray"))


def run(jobs, script, python, **fields):
    return jobs.run(script, launcher="ray", ray=SMALL, python=python, **fields)


SPREAD = """
import json, os, socket, ray
import beside

ray.init()

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Worker:
    def where(self):
        print("a worker on", socket.gethostname())
        return socket.gethostname(), beside.NAME

workers = [Worker.remote() for _ in range(4)]
places = ray.get([worker.where.remote() for worker in workers])
told = {
    "places": sorted(places),
    "cpus": ray.cluster_resources()["CPU"],
    "addresses": sorted(node["NodeManagerAddress"] for node in ray.nodes()),
}
with open(os.environ["DT_RESULT_FILE"], "w") as file:
    json.dump(told, file)
"""


def beside(source):
    (source / "beside.py").write_text("NAME = 'imported'")


def test_a_driver_finds_all_hosts_and_nothing_is_left_of_its_cluster(jobs, fleet, python):
    """Case B85, too: the nodes are known by the addresses by which hosts reach each other."""
    job = run(jobs, SPREAD, python, furnish=beside)
    assert job.error is None, job.text
    result = job.left.result
    assert result["places"] == [["gpu1", "imported"]] * 2 + [["gpu2", "imported"]] * 2
    assert result["cpus"] == 4
    assert result["addresses"] == [node.address for node in job.plan.nodes]
    assert sum("a worker on gpu2" in line for line in job.of_rank(0)) == 2
    assert nothing_left(fleet)


def nothing_left(fleet):
    """Tell whether no host has a process or a temporary file of Ray."""
    for host in fleet.hosts:
        listed = host.exec(["sh", "-c", "ls -d /tmp/ray /tmp/dt-ray-*"], check=False).stdout
        processes = [each.command for each in host.processes() if "ray" in each.command]
        if listed or processes:
            raise AssertionError(f"{host.name} still has {listed} {processes}")
    return True


def test_a_node_of_ray_that_is_lost_is_named_and_all_of_ray_ends(jobs, fleet, python):
    def kill_raylet(job):
        host = fleet.hosts[1]
        (raylet,) = [each for each in host.processes() if "/raylet/raylet " in each.command]
        host.exec(["kill", "-9", str(raylet.pid)])

    wait = "import time, ray; ray.init(); print('waits now', flush=True); time.sleep(600)"
    job = run(jobs, wait, python, when="waits now", then=kill_raylet, grace_period=10.0)
    assert (job.error.rank, job.error.host) == (2, "gpu2")
    assert "rank 2 (Ray node 1) on gpu2 exited with status 1" in job.error.message
    assert nothing_left(fleet)


def test_a_python_without_ray_is_refused_before_anything_starts(jobs):
    with pytest.raises(PreflightFailed, match=r"gpu2: ray is missing: .*python3 does not have it"):
        jobs.run("pass", launcher="ray")
