"""Real TensorFlow on real hosts, and what becomes of those who serve it."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from pathlib import Path

import pytest

from dev.setup import hosts_python
from distributed_training.cluster import Cluster
from distributed_training.errors import RankFailed
from distributed_training.operators.tensorflow import TFMultiWorkerOperator
from distributed_training.plan import Program
from distributed_training.run import queue
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch
from distributed_training.run.standing import standing
from distributed_training.run.stop import stop
from distributed_training.run.verdict import is_port_taken
from distributed_training.run.watch import Watcher
from distributed_training.triggers import base
from tests.integration.jobs import THIEF, digits
from tests.integration.tasks import Task, event_of, stored
from tests.offers import spec

TRAIN = Path(__file__).parents[2] / "dags/train_tensorflow/train.py"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def python():
    """The Python of an environment with TensorFlow that the hosts' users can run."""
    return str(hosts_python("tensorflow"))


def run(jobs, script, cluster, **fields):
    return jobs.run(script, launcher="tensorflow", cluster=cluster, **fields)


def test_workers_on_two_hosts_train_one_model_whatever_proxies_are_named(jobs, python):
    """Case B75, too: gRPC would wait for the proxy for ever."""
    proxies = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "no_proxy": "localhost"}
    job = run(
        jobs,
        TRAIN.read_text(),
        Cluster(4),
        python=python,
        furnish=digits,
        env={"TF_USE_LEGACY_KERAS": "1", **proxies},
    )
    assert job.error is None, job.text
    assert len(job.left.result["checksums"]) == 4
    assert len(set(job.left.result["checksums"])) == 1
    loss = job.left.result["loss"]
    assert loss[-1] < loss[0] / 5
    assert job.left.metrics == {"epoch": 20, "loss": loss[-1]}
    for rank, host in enumerate(["gpu1", "gpu1", "gpu2", "gpu2"]):
        assert f"1 of 4 replicas, 512 digits, on {host}" in job.of_rank(rank)


COORDINATE = """
import json, os, time, tensorflow as tf
task = json.loads(os.environ["TF_CONFIG"])["task"]
folder = os.environ["DT_CHECKPOINT_DIR"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

if task["type"] in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=task["type"], task_index=task["index"], protocol="grpc"
    )
    server.join()

if task["type"] == "evaluator":
    while not (tf.train.latest_checkpoint(folder) or "").endswith("-2"):
        time.sleep(0.2)
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    print("evaluated", round(float(reader.get_tensor("w/.ATTRIBUTES/VARIABLE_VALUE")), 2))
    raise SystemExit

strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    w = tf.Variable(0.0)
checkpoint = tf.train.Checkpoint(w=w)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

@tf.function
def step():
    def learn():
        x = tf.random.normal([32])
        slope = tf.reduce_mean(2 * (w - 3.0) * x * x)
        w.assign_sub(0.05 * slope)
    strategy.run(learn)

for _ in range(2):
    for _ in range(60):
        coordinator.schedule(step)
    coordinator.join()
    checkpoint.save(f"{folder}/ckpt")
print("learned", round(float(w.numpy()), 2), flush=True)
"""


def test_a_coordinator_trains_through_servers_which_are_ended_with_it(jobs_on, fleet, python):
    # Chief, parameter server and evaluator read and write the same checkpoints, on one host.
    listed = fleet.hosts_text(slots=1).replace("slots=1", "slots=3", 1)
    cluster = Cluster(2, 1, chief=True, evaluator_count=1, placement="round_robin")
    job = run(
        jobs_on(fleet, hosts=listed), COORDINATE, cluster, python=python, checkpoint_dir="saved"
    )
    assert job.error is None, job.text
    assert [[rank.role for rank in node.ranks] for node in job.plan.nodes] == [
        ["chief", "worker 1", "ps 0", "evaluator 0"], ["worker 0"],
    ]  # fmt: skip
    assert "learned 3.0" in job.of_rank(0)
    assert "evaluated 3.0" in job.of_rank(4)


SUM = """
import os, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def total():
    return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)

for step in range(2000):
    assert float(total()) == 2
    if step == 3 and os.environ["DT_RANK"] == "1":
        raise KeyError("layer")
"""


def test_a_worker_that_fails_is_named_and_not_those_that_it_pulled_down(jobs, python):
    job = run(jobs, SUM, Cluster(2, placement="round_robin"), python=python, grace_period=2.0)
    assert (job.error.rank, job.error.host, job.error.exit_code) == (1, "gpu2", 1)
    assert "rank 1 (worker 1) on gpu2 exited with status 1" in job.error.message
    assert "KeyError: 'layer'" in job.error.message


def test_a_port_taken_between_lease_and_use_is_told_as_such(jobs, python):
    """Case B41: worker 0 finds its port taken, as if somebody had been faster."""
    job = run(jobs, SUM, Cluster(1), python=python, setup=THIEF)
    assert is_port_taken(job.error), job.error


# The rest is about processes, and needs no TensorFlow.

SERVE = """
import json, os, signal, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
print("task", task["type"], task["index"], flush=True)
if task["type"] == "ps":
    while True:
        time.sleep(1)
"""


def test_parameter_servers_are_ended_when_the_workers_are_done(jobs):
    """Case B77."""
    began = time.monotonic()
    job = run(jobs, SERVE + "time.sleep(2)", Cluster(2, 2, placement="round_robin"))
    assert job.error is None, job.text
    assert time.monotonic() - began < 20
    assert [job.of_rank(rank) for rank in range(4)] == [
        ["task worker 0"], ["task worker 1"], ["task ps 0"], ["task ps 1"],
    ]  # fmt: skip


def test_a_worker_that_serves_and_ignores_the_signal_is_ended_with_the_chief(jobs):
    deaf = """
if task["type"] == "worker":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
time.sleep(2)
"""
    job = run(jobs, SERVE + deaf, Cluster(1, 1, chief=True), grace_period=1.0)
    assert job.error is None, job.text
    assert jobs.ask(lambda agents: survivors(agents, job)) == [0]


async def survivors(agents, job):
    """Return how many processes are left of a job on each of its hosts."""
    key = {"job": job.plan.spec.job_id, "attempt": 0}
    calls = (
        agents[node.host.name].call("status", node=node.node_rank, **key) for node in job.plan.nodes
    )
    return [answer["survivors"] for answer in await asyncio.gather(*calls)]


def test_a_parameter_server_that_fails_is_a_failure(jobs):
    """Case B77."""
    dies = SERVE.replace("while True:", "for _ in range(1):") + "    raise KeyError('variable')\n"
    job = run(jobs, dies + "time.sleep(600)", Cluster(2, 1), grace_period=1.0)
    assert isinstance(job.error, RankFailed)
    assert "rank 2 (ps 0) on gpu1 exited with status 1" in job.error.message


def test_an_evaluator_ends_after_all_others_or_is_ended(jobs):
    last = """
if task["type"] == "evaluator":
    time.sleep(2 if task["index"] == 0 else 600)
    print("evaluated", flush=True)
"""
    cluster = Cluster(1, evaluator_count=2, evaluator_timeout=5)
    job = run(jobs, SERVE + last, cluster)
    assert job.error is None, job.text
    assert job.of_rank(1) == ["task evaluator 0", "evaluated"]
    assert job.of_rank(2) == ["task evaluator 1"]


def test_who_watches_later_lets_the_servers_go(jobs):
    """The watcher was gone when the worker ended: its host is done with the job, another is not."""
    command = "[ $DT_ROLE = worker ] || sleep 600"
    asked = spec(
        job_id=f"later-{secrets.token_hex(4)}",
        program=Program("command", command),
        launcher="tensorflow",
        cluster=Cluster(1, evaluator_count=1, placement="round_robin", evaluator_timeout=0),
        grace_period=2.0,
    )

    async def play(agents):
        plan = await launch(asked, list(agents.values()), owner="first")
        ref = JobRef.from_dict(json.loads(json.dumps(JobRef.of(plan).to_dict())))
        key = {"job": ref.job_id, "attempt": 0, "node": 0}
        while True:
            if (await agents["gpu1"].call("status", **key)).get("ended"):
                break
            await asyncio.sleep(0.1)
        seen = await standing(ref, agents)
        return seen, (await Watcher(ref, agents, "second", print).watch()).error

    assert jobs.ask(play) == ("running", None)


def test_a_cluster_waits_for_as_many_slots_as_it_has_tasks(jobs, monkeypatch):
    monkeypatch.setattr(queue, "PAUSE", (0.2, 0.5))
    monkeypatch.setattr(base, "HOLD", 0.0)
    held = [jobs.ask(hold, name) for name in ("gpu1", "gpu2")]
    try:
        task = Task("true", kind=TFMultiWorkerOperator, worker_count=2, queue_timeout=60)
        deferred = task.deferred()
        assert deferred.method_name == "launch_queued"
        jobs.ask(stop_all, held[:1])
        event = asyncio.run(event_of(stored(deferred.trigger)))
        assert event["error"] is None
        result = task.kind(**task.fields).launch_queued(task.context, event=event)
        assert result["hosts"] == ["gpu1"]
    finally:
        jobs.ask(stop_all, held)


async def hold(agents, name):
    """Take all slots of a host."""
    asked = spec(job_id=f"holder-{secrets.token_hex(4)}", program=Program("command", "sleep 600"))
    return JobRef.of(await launch(asked, [agents[name]], owner="test"))


async def stop_all(agents, refs):
    for ref in refs:
        await stop(ref, agents, reason="enough", wait=3.0)
