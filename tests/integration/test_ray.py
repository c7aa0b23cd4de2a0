"""Real Ray on real hosts: a cluster of the job's own, which leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest

from dev.setup import hosts_python
from distributed_training.errors import PreflightFailed
from distributed_training.plan import RayOptions
from tests.integration.jobs import digits

TRAIN = Path(__file__).parents[2] / "dags/train_ray/train.py"
SMALL = RayOptions(object_store_memory=100_000_000)


@pytest.fixture(scope="session")
def python():
    """The Python of an environment with Ray that the hosts' users can run."""
    return str(hosts_python("ray"))


def run(jobs, script, python, **fields):
    # Some minutes: Ray starts a dozen programs on each host, and the hosts share one machine.
    patient = {"start_timeout": 900.0, **fields}
    return jobs.run(script, launcher="ray", ray=SMALL, python=python, **patient)


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


def test_workers_of_ray_train_on_two_hosts_learn_the_same_model(jobs, python):
    job = run(jobs, TRAIN.read_text(), python, furnish=digits)
    assert job.error is None, job.text
    assert len(job.left.result["checksums"]) == job.left.result["world_size"] == 4
    assert len(set(job.left.result["checksums"])) == 1
    loss = job.left.result["loss"]
    assert loss[-1] < loss[0] / 5
    for host in ("gpu1", "gpu2"):
        assert any(f" of 4 on {host}" in line for line in job.of_rank(0))


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


FIRST = """
import pathlib, time, ray
ray.init()
print("waits now", flush=True)
while not pathlib.Path("/tmp/second-fails").exists():
    time.sleep(0.2)
time.sleep(10)
print(len(ray.nodes()), "nodes,", ray.get(ray.remote(lambda: "still at work").remote()))
"""
SECOND = """
import pathlib, ray
ray.init()
ray.get(ray.remote(lambda: 1).remote())
pathlib.Path("/tmp/second-fails").touch()
raise KeyError("layer")
"""


def test_clusters_on_the_same_hosts_leave_each_other_alone(jobs, python):
    """Case B85, too: the end of one is none of the other's, nor is its port."""
    ended = SimpleQueue()

    def run_second(_):
        ended.put(run(jobs, SECOND, python, nproc_per_node=1, grace_period=10.0))

    first = run(jobs, FIRST, python, nproc_per_node=1, when="waits now", then=run_second)
    assert first.error is None, first.text
    assert first.of_rank(0)[-1] == "2 nodes, still at work"
    second = ended.get(timeout=120)
    assert (second.error.rank, second.error.exit_code) == (0, 1)
    assert "rank 0 (driver) on gpu1 exited with status 1" in second.error.message
    assert "KeyError: 'layer'" in second.error.message


def test_a_python_without_ray_is_refused_before_anything_starts(jobs):
    with pytest.raises(PreflightFailed, match=r"gpu2: ray is missing: .*python3 does not have it"):
        jobs.run("pass", launcher="ray")
