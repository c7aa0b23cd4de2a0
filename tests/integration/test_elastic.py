"""Elastic torchrun on real hosts: what is lost, what goes on, and from where."""

from __future__ import annotations

import json
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from distributed_training.errors import NodeLost, RankFailed
from tests.fleet.wait import until
from tests.integration.tasks import Task

# Adds 1 on every rank in each of STEPS steps: the total of a step is the number of ranks that made
# it. All of them go on from the checkpoint of rank 0, since hosts share no files.
TRAIN = """
import json, os, time, torch, torch.distributed as dist
steps = int(os.environ["STEPS"])
dist.init_process_group("gloo")
rank, size, done = dist.get_rank(), dist.get_world_size(), []
if rank == 0 and (saved := os.environ.get("DT_RESUME_FROM")):
    done = torch.load(saved)
told = [done]
dist.broadcast_object_list(told)
(done,) = told
names = ("NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "DT_RANK")
print("begins", json.dumps({name: int(os.environ[name]) for name in names} | {
    "size": size, "from": len(done), "attempt": int(os.environ["DT_ATTEMPT"]),
}), flush=True)
folder = os.environ["DT_CHECKPOINT_DIR"]
os.makedirs(folder, exist_ok=True)
for step in range(len(done), steps):
    total = torch.ones(1)
    dist.all_reduce(total)
    done.append(int(total))
    if rank == 0:
        torch.save(done, f"{folder}/step-{step}.pt.tmp")
        os.replace(f"{folder}/step-{step}.pt.tmp", f"{folder}/step-{step}.pt")
        print("step", step, size, flush=True)
    WHAT_HAPPENS
    time.sleep(float(os.environ.get("PAUSE", "0.2")))
if rank == 0:
    with open(os.environ["DT_RESULT_FILE"], "w") as file:
        json.dump(done, file)
dist.barrier()
dist.destroy_process_group()
print("ends", flush=True)
os._exit(0)
"""
TIMES = {"host_timeout": 8.0, "grace_period": 3.0}
STEPS = 20
SAVED = "checkpoints/step-3.pt"
# Rank 1 ends by itself in the fourth step, until torchrun has started it again so many times.
FAILS = """
    if rank == 1 and step >= 3 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < {}:
        os._exit(9)
"""


@pytest.fixture
def elastic(jobs_on, torch_python):
    """Run elastic jobs on a fleet."""

    def run(hosts, nnodes, what="pass", **fields):
        least, most = map(int, nnodes.split(":"))
        asked = {
            "launcher": "torchrun",
            "python": str(torch_python),
            "nproc_per_node": 1,
            "min_nodes": least,
            "nnodes": most,
            "max_restarts": 3,
            "checkpoint_dir": f"checkpoints-{secrets.token_hex(4)}",
            "env": {"STEPS": str(STEPS)},
            **TIMES,
        }
        jobs = jobs_on(hosts, conn_timeout=4)
        return jobs.run(TRAIN.replace("WHAT_HAPPENS", what), **asked | fields)

    return run


def begun(job):
    """Return what each rank told when it began, in the order of the log."""
    lines = [line.partition("] begins ") for line in job.lines]
    return [json.loads(told) for _, found, told in lines if found]


def sizes(job):
    """Return the number of ranks of each group, in the order in which they trained."""
    return list(dict.fromkeys(each["size"] for each in begun(job)))


@pytest.mark.parametrize("fault", ["power_cut", "cut_cable"])
def test_a_lost_host_shrinks_the_job_which_succeeds(elastic, make_fleet, fault):
    hosts = make_fleet(3)

    def strike(job):
        getattr(hosts["gpu2"], fault)()

    job = elastic(hosts, "2:3", when="step 5 3", then=strike)
    assert job.error is None, job.text
    assert sizes(job) == [3, 2]
    done = job.left.result
    assert (len(done), set(done)) == (STEPS, {3, 2})
    assert done == sorted(done, reverse=True)
    assert "gpu2 is lost: " in job.text
    assert "the job goes on with 2 of 3 nodes (at least 2)" in job.text
    ref = job.outcome.ref
    assert ([node.host.name for node in ref.nodes], ref.world_size) == (["gpu1", "gpu3"], 2)
    last = [each for each in begun(job) if each["size"] == 2]
    assert sorted((each["NODE_RANK"], each["GROUP_RANK"]) for each in last) == [(0, 0), (1, 1)]
    assert {(each["GROUP_WORLD_SIZE"], each["from"] > 5) for each in last} == {(2, True)}


@pytest.mark.parametrize(("nnodes", "victim"), [("2:2", "gpu2"), ("1:2", "gpu1")])
def test_too_few_hosts_or_no_head_are_the_end(elastic, make_fleet, nnodes, victim):
    hosts = make_fleet(2)
    job = elastic(hosts, nnodes, when="step 5 2", then=lambda job: hosts[victim].power_cut())
    assert isinstance(job.error, NodeLost), job.text
    assert job.error.host == victim


def test_a_rank_that_failed_is_started_again_with_all_others(elastic, fleet):
    job = elastic(fleet, "1:2", FAILS.format(1))
    assert job.error is None, job.text
    assert job.left.result == [2] * STEPS
    assert "rank 1 has failed (status 9); restarts left to torchrun: 3" in job.text
    first, again = begun(job)[:2], begun(job)[2:]
    assert {each["from"] for each in first} == {0}
    assert len(again) == 2
    assert {each["from"] > 0 for each in again} == {True}
    steps = [line.split()[1] for line in job.of_rank(0) if line.startswith("step ")]
    assert list(dict.fromkeys(map(int, steps))) == list(range(STEPS))
    for rank in range(2):
        assert job.of_rank(rank).count("ends") == 1


def test_a_rank_that_fails_once_too_often_is_named(elastic, fleet):
    job = elastic(fleet, "1:2", FAILS.format(9), max_restarts=1)
    assert isinstance(job.error, RankFailed), job.text
    assert (job.error.rank, job.error.host, job.error.exit_code) == (1, "gpu2", 9)


# Of two jobs, the first one waits in its fourth step until the second one trains.
WAITS = """
    while rank == 0 and step == 3 and not os.path.exists(os.path.expanduser("~/other")):
        time.sleep(0.1)
"""
TRAINS = """
    open(os.path.expanduser("~/other"), "w").close()
"""


def test_two_elastic_jobs_on_the_same_hosts_leave_each_other_alone(elastic, fleet):
    holds = threading.Event()  # its slots: the other one takes what is left
    with ThreadPoolExecutor() as pool:
        first = pool.submit(
            elastic, fleet, "1:2", WAITS, when="starts ranks", then=lambda job: holds.set()
        )
        assert holds.wait(240)
        second = pool.submit(elastic, fleet, "2:2", FAILS.format(1) + TRAINS)
    for job in (first.result(), second.result()):
        assert job.error is None, job.text
        assert job.left.result == [2] * STEPS
    assert first.result().plan.master_port != second.result().plan.master_port


def test_a_job_that_lost_its_head_is_started_anew_on_what_is_left(
    jobs_on, make_fleet, torch_python, tmp_path
):
    """By our own max_restarts: torchrun has no rendezvous any more."""
    hosts = make_fleet(2)
    jobs_on(hosts, slots=1, conn_timeout=4)
    (tmp_path / "train.py").write_text(TRAIN.replace("WHAT_HAPPENS", "pass"))
    task = Task(
        None,
        script="train.py",
        python=str(torch_python),
        source_dir=str(tmp_path),
        launcher="torchrun",
        nnodes="1:2",
        max_restarts=1,
        checkpoint_dir="checkpoints",
        env={"STEPS": str(STEPS), "PAUSE": "0.5"},
        host_timeout=8,
    ).start()

    def saved():
        return hosts["gpu1"].exec(["test", "-e", SAVED], check=False).returncode == 0

    until(saved, "rank 0 has saved nothing", timeout=240)
    hosts["gpu1"].power_cut()
    result = task.wait()
    assert (result["hosts"], result["world_size"], result["restarts"]) == (["gpu2"], 1, 1)
    assert result["result"] == [1] * STEPS
