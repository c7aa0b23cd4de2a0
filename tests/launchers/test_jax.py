"""What each process of a JAX job is told."""

from __future__ import annotations

import pytest

from distributed_training import launchers
from distributed_training.errors import PlanError
from distributed_training.fleet import Host
from tests.offers import offer, spec


def processes(offers, **fields):
    planned = launchers.plan(spec(launcher="jax", **fields), offers)
    return [process for node in planned.nodes for process in node.processes]


def told(process):
    return {name: value for name, value in process.env.items() if name.startswith("JAX_")}


def test_each_process_is_told_the_coordinator_and_its_number():
    every = processes([offer("gpu1", slots=2), offer("gpu2", slots=1)])
    assert [told(process) for process in every] == [
        {
            "JAX_COORDINATOR_ADDRESS": "10.0.0.1:20001",
            "JAX_NUM_PROCESSES": "3",
            "JAX_PROCESS_ID": str(number),
        }
        for number in range(3)
    ]
    assert every[0].env["MASTER_ADDR"] == "10.0.0.1"


def test_an_ipv6_address_is_told_from_its_port():
    (process,) = processes([offer(host=Host("gpu1", slots=1, address="fd00::1"))], master_port=999)
    assert process.env["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:999"


def test_each_process_takes_one_of_the_gpus_that_it_sees():
    every = processes([offer(gpus=4, busy={"gpu-GPU-1-0": {"job": "other"}})], nproc_per_node=2)
    assert [process.env["JAX_LOCAL_DEVICE_IDS"] for process in every] == ["0", "1"]
    assert {process.env["CUDA_VISIBLE_DEVICES"] for process in every} == {"GPU-1-1,GPU-1-2"}


def test_the_user_may_choose_devices_but_not_the_place_of_a_process():
    (process,) = processes([offer(gpus=1)], env={"JAX_LOCAL_DEVICE_IDS": "0,1"})
    assert process.env["JAX_LOCAL_DEVICE_IDS"] == "0,1"
    with pytest.raises(PlanError, match="env sets JAX_PROCESS_ID, which the launcher sets"):
        processes([offer()], env={"JAX_PROCESS_ID": "0"})


def test_other_launchers_leave_the_variables_of_jax_to_the_user():
    env = {"JAX_COORDINATOR_ADDRESS": "10.0.0.9:1"}
    (process,) = launchers.plan(spec(env=env), [offer()]).head.processes
    assert process.env["JAX_COORDINATOR_ADDRESS"] == "10.0.0.9:1"


def test_no_proxy_stands_between_the_processes():
    process, _ = processes([offer("gpu1"), offer("gpu2")])
    assert process.no_proxy == ("10.0.0.1", "10.0.0.2")
