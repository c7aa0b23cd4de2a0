"""What a Ray job starts on its hosts."""

from __future__ import annotations

import json

import pytest

from distributed_training import launchers
from distributed_training.errors import PlanError
from distributed_training.plan import RayOptions
from tests.offers import offer, spec


def plan(offers, **fields):
    return launchers.plan(spec(launcher="ray", **fields), offers)


def processes(offers, **fields):
    planned = plan(offers, **fields)
    return [process for node in planned.nodes for process in node.processes]


def told(process):
    """Return what the agent's `ray` command is told, and what follows it."""
    at = process.argv.index("ray")
    return process.argv[at + 1], json.loads(process.argv[at + 2]), process.argv[at + 3 :]


def test_the_driver_runs_once_and_a_node_of_ray_on_each_host():
    ranks = [
        rank for node in plan([offer("gpu1", slots=2), offer("gpu2")]).nodes for rank in node.ranks
    ]
    assert [(rank.rank, rank.role, rank.serves) for rank in ranks] == [
        (0, "driver", None), (1, "Ray head", 0.0), (2, "Ray node 1", 0.0),
    ]  # fmt: skip


def test_the_driver_waits_for_the_nodes_of_all_hosts():
    kind, known, program = told(processes([offer("gpu1"), offer("gpu2")], start_timeout=9.0)[0])
    assert kind == "driver"
    assert known == {
        "head": ["10.0.0.1", 20001],
        "nodes": {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2"},
        "start_timeout": 9.0,
    }
    assert program == ("python3", "train.py")


def test_nodes_meet_at_the_heads_port_by_the_addresses_of_the_plan():
    _, head, node = processes([offer("gpu1", slots=3), offer("gpu2", slots=2)])
    _, known, words = told(head)
    assert {"--head", "--port=20001", "--node-ip-address=10.0.0.1", "--num-cpus=3"} < set(words)
    assert (known["wait_for"], known["client_port"]) == (None, 20002)
    _, known, words = told(node)
    assert {"--address=10.0.0.1:20001", "--node-ip-address=10.0.0.2", "--num-cpus=2"} < set(words)
    assert known["wait_for"] == ["10.0.0.1", 20001]
    assert {"--min-worker-port=0", "--max-worker-port=0", "--num-gpus=0"} < set(words)


def test_ray_has_the_gpus_of_its_slots_alone():
    busy = {"gpu-GPU-1-0": {"job": "other"}}
    _, head = processes([offer(gpus=4, busy=busy, cpus=16)], nproc_per_node=2)
    assert {"--num-gpus=2", "--num-cpus=16"} < set(told(head)[2])
    assert head.env["CUDA_VISIBLE_DEVICES"] == "GPU-1-1,GPU-1-2"


def test_what_a_node_deals_out_may_be_chosen():
    _, head = processes([offer()], ray=RayOptions(num_cpus=7, object_store_memory=10**8))
    assert {"--num-cpus=7", "--object-store-memory=100000000"} < set(told(head)[2])


def test_each_attempt_has_a_folder_of_its_own_that_leaves_room_for_sockets():
    folders = set()
    for attempt in (0, 1):
        planned = launchers.plan(spec(launcher="ray"), [offer()], attempt)
        folders.add(told(planned.head.processes[1])[1]["folder"])
    assert len(folders) == 2
    session = "/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
    assert max(map(len, folders)) + len(session) <= 107


def test_no_proxy_stands_between_the_nodes_and_no_variable_of_torch_is_set():
    driver, *_ = processes([offer("gpu1"), offer("gpu2")])
    assert driver.no_proxy == ("10.0.0.1", "10.0.0.2")
    assert driver.env["RAY_ADDRESS"] == "10.0.0.1:20001"
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(driver.env)
    assert "OMP_NUM_THREADS" not in driver.defaults


def test_a_user_cannot_send_the_driver_to_another_cluster():
    with pytest.raises(PlanError, match="env sets RAY_ADDRESS"):
        plan([offer()], env={"RAY_ADDRESS": "10.0.0.9:6379"})
