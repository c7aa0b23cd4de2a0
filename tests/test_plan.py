"""Where ranks go, whatever hosts offer."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_training import launchers
from distributed_training.errors import PlanError
from distributed_training.fleet import Host
from distributed_training.placing import place
from tests.offers import offer, spec

uneven_slots = st.lists(st.integers(1, 16), min_size=1, max_size=32)


@given(uneven_slots)
def test_every_rank_is_there_once_and_hosts_are_filled_in_order(slots):
    plan = place(spec(), [offer(f"gpu{n}", slots=count) for n, count in enumerate(slots, 1)])
    ranks = [rank for node in plan.nodes for rank in node.ranks]
    assert [rank.rank for rank in ranks] == list(range(sum(slots)))
    assert [len(node.ranks) for node in plan.nodes] == slots
    assert plan.world_size == sum(slots)
    for node in plan.nodes:
        assert [rank.local_rank for rank in node.ranks] == list(range(len(node.ranks)))
        assert len({rank.slot for rank in node.ranks}) == len(node.ranks)


@given(uneven_slots, st.data())
def test_a_number_of_nodes_and_ranks_is_met_exactly_or_refused(slots, data):
    nnodes = data.draw(st.integers(1, len(slots) + 1))
    nproc = data.draw(st.integers(1, 17))
    offers = [offer(f"gpu{n}", slots=count) for n, count in enumerate(slots, 1)]
    try:
        plan = place(spec(nnodes=nnodes, nproc_per_node=nproc), offers)
    except PlanError:
        assert nnodes > len(slots) or nproc > min(slots)
    else:
        assert plan.world_size == nnodes * nproc


@given(uneven_slots, st.sampled_from(["process", "torchrun"]))
def test_the_environment_of_all_ranks_agrees(slots, launcher):
    offers = [offer(f"gpu{n}", slots=count) for n, count in enumerate(slots, 1)]
    plan = launchers.plan(spec(launcher=launcher), offers)
    envs = [process.env for node in plan.nodes for process in node.processes]
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs} == {("10.0.0.1", "20001")}
    if launcher == "process":
        assert [int(env["RANK"]) for env in envs] == list(range(sum(slots)))
        assert {env["WORLD_SIZE"] for env in envs} == {str(sum(slots))}
        for node in plan.nodes:
            sizes = {process.env["LOCAL_WORLD_SIZE"] for process in node.processes}
            assert sizes == {str(len(node.ranks))}


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12))
def test_free_hosts_are_taken_before_busy_ones(busy, nnodes):
    offers = [
        offer(f"gpu{n}", slots=1, busy={"cpu-0": {"job": "other"}} if taken else {})
        for n, taken in enumerate(busy, 1)
    ]
    wanted = min(nnodes, len(busy))
    plan = place(spec(nnodes=wanted), offers)
    chosen = [node.host.name for node in plan.nodes]
    taken = {o.host.name for o in offers if o.busy}
    assert len(taken.intersection(chosen)) == max(0, wanted - (len(busy) - sum(busy)))
    assert chosen == [o.host.name for o in offers if o.host.name in chosen]


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12), st.integers(1, 12))
def test_an_elastic_job_takes_what_is_free_and_no_less_than_its_least(busy, low, high):
    least, most = sorted((low, high))
    offers = [
        offer(f"gpu{n}", slots=1, busy={"cpu-0": {"job": "other"}} if taken else {})
        for n, taken in enumerate(busy, 1)
    ]
    try:
        plan = place(spec(min_nodes=least, nnodes=most), offers)
    except PlanError:
        assert least > len(offers)
        return
    free = len(busy) - sum(busy)
    assert len(plan.nodes) == min(most, max(least, free))
    addresses = [node.address for node in plan.nodes]
    assert addresses == sorted(addresses)  # torchrun's order, in which rank 0 is on the head
    told = {line.partition(":")[0] for line in plan.left_out}
    without = {each.host.name for each in offers} - {node.host.name for node in plan.nodes}
    assert told == (without if len(plan.nodes) < most else set())


def test_an_elastic_job_tells_why_it_does_without_a_host():
    drained = {"since": 0.0, "by": "ada", "reason": "fan"}
    busy = {"cpu-0": {"job": "other"}}
    offers = [offer("gpu1"), offer("gpu2", drained=drained), offer("gpu3", busy=busy)]
    told = "\n".join(place(spec(min_nodes=1, nnodes=3), offers).describe())
    assert "elastic: at least 1 nodes, at most 3" in told
    assert "left out: gpu2: drained by ada since 1970-01-01 00:00 UTC (fan)" in told
    assert "left out: gpu3: in use are 1 of the slots that it would take" in told


def test_an_elastic_job_needs_an_address_for_each_host():
    offers = [offer(f"gpu{n}", ssh_address="10.0.0.1", machine_id="one") for n in (1, 2)]
    with pytest.raises(PlanError, match=r"gpu1 and gpu2 have the same address 10\.0\.0\.1"):
        place(spec(min_nodes=1, nnodes=2), offers)


def test_uneven_hosts_give_each_rank_the_sizes_of_its_own_node():
    """Case B44."""
    plan = launchers.plan(spec(), [offer("gpu1", slots=1), offer("gpu2", slots=2)])
    envs = [process.env for node in plan.nodes for process in node.processes]
    assert [env["RANK"] for env in envs] == ["0", "1", "2"]
    assert [env["LOCAL_WORLD_SIZE"] for env in envs] == ["1", "2", "2"]
    assert [env["LOCAL_RANK"] for env in envs] == ["0", "0", "1"]


def test_ranks_see_the_gpus_that_the_fleet_names_in_that_order():
    """Case B47."""
    host = Host("gpu1", slots=2, gpus=("5", "4"))
    plan = launchers.plan(spec(), [offer(gpus=8, host=host)])
    for process in plan.head.processes:
        assert process.env["CUDA_VISIBLE_DEVICES"] == "GPU-1-5,GPU-1-4"
    assert [slot.name for slot in plan.head.slots] == ["gpu-GPU-1-5", "gpu-GPU-1-4"]


def test_free_gpus_are_taken_before_busy_ones():
    plan = place(spec(nproc_per_node=2), [offer(gpus=4, busy={"gpu-GPU-1-0": {"job": "other"}})])
    assert plan.head.gpus == ("GPU-1-1", "GPU-1-2")


def test_more_ranks_than_slots_share_them_if_asked_to():
    plan = place(spec(nproc_per_node=3, oversubscribe=True), [offer(gpus=2)])
    assert [rank.slot.gpu for rank in plan.head.ranks] == ["GPU-1-0", "GPU-1-1", "GPU-1-0"]
    assert plan.head.gpus == ("GPU-1-0", "GPU-1-1")


def test_two_hosts_on_one_machine_hold_places_of_their_own():
    offers = [offer(f"gpu{n}", slots=2, machine_id="one") for n in (1, 2)]
    plan = place(spec(), offers)
    held = [slot.name for node in plan.nodes for slot in node.slots]
    assert held == ["cpu-0", "cpu-1", "cpu-2", "cpu-3"]


@pytest.mark.parametrize(
    ("fields", "offers", "words"),
    [
        ({"nnodes": 3}, [offer("gpu1"), offer("gpu2")], "nnodes=3, but 2 hosts.*gpu1, gpu2"),
        ({"nproc_per_node": 4}, [offer(slots=2)], r"gpu1: nproc_per_node=4, but it has 2 slots"),
        ({}, [offer(gpus=4, slots=8)], "gpu1: the fleet names 8 slots.*nvidia-smi"),
        ({}, [offer(host=Host("gpu1", gpus=("4", "5")))], "gpu1: .*4, 5.* lists: none"),
        ({}, [offer(host=Host("gpu1", slots=2, places=(2,)))], "gpu1.*slot.*2"),
        ({"backend": "nccl"}, [offer()], "backend='nccl' needs GPUs, and gpu1"),
        ({}, [offer(ssh_address=None)], "gpu1: no address is known.*address="),
        ({}, [offer(ports=())], "gpu1: no free port"),
        (
            {},
            [offer("gpu1", ssh_address="127.0.0.1"), offer("gpu2")],
            "gpu1: its address 127.0.0.1 is that of every host",
        ),
    ],
)
def test_what_cannot_be_met_is_refused_with_the_numbers(fields, offers, words):
    with pytest.raises(PlanError, match=words):
        place(spec(**fields), offers)


def test_the_address_of_the_fleet_goes_before_that_of_ssh():
    host = Host("gpu1", address="192.168.7.1")
    addresses = {"10.0.0.1": "eth0", "192.168.7.1": "ib0"}
    plan = place(spec(), [offer(host=host, addresses=addresses)])
    assert (plan.head.address, plan.head.interface) == ("192.168.7.1", "ib0")


def test_a_plan_is_told_without_values_of_variables():
    plan = launchers.plan(spec(env={"TOKEN": "hunter2"}), [offer()])
    assert "hunter2" not in "\n".join(plan.describe()) + repr(plan)


def test_a_plan_is_frozen():
    plan = place(spec(), [offer()])
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.attempt = 1  # type: ignore[misc]


def saved(path, step, time=0.0):
    """Return what a host says of its newest checkpoint."""
    return {"path": path, "step": step, "time": time, "layout": "torch"}


def test_a_restart_resumes_from_the_newest_checkpoint_of_all_hosts():
    offers = [
        offer("gpu1", checkpoint=saved("/c/checkpoint-20", 20)),
        offer("gpu2", checkpoint=saved("/c/checkpoint-100", 100)),
        offer("gpu3"),
    ]
    fields = {"checkpoint_dir": "/c", "resumes": True}
    env = launchers.plan(spec(**fields), offers).nodes[2].processes[0].env
    assert (env["DT_CHECKPOINT_DIR"], env["DT_RESUME_FROM"]) == ("/c", "/c/checkpoint-100")


@pytest.mark.parametrize("folder", ["runs/1", "~/runs/1", "/home/ada/runs/1"])
def test_a_checkpoint_folder_counts_from_the_users_home(folder):
    plan = launchers.plan(spec(checkpoint_dir=folder), [offer(home="/home/ada")])
    assert plan.head.processes[0].env["DT_CHECKPOINT_DIR"] == "/home/ada/runs/1"


def test_a_first_start_resumes_from_nothing():
    plan = launchers.plan(spec(checkpoint_dir="/c"), [offer(checkpoint=saved("/c/1", 1))])
    assert "DT_RESUME_FROM" not in plan.head.processes[0].env


def test_what_was_passed_over_is_told():
    passed_over = ({"path": "/c/checkpoint-20", "why": "half of it is missing"},)
    fields = {"checkpoint_dir": "/c", "resumes": True}
    plan = place(spec(**fields), [offer(checkpoints_passed_over=passed_over)])
    told = "\n".join(plan.describe())
    assert "/c/checkpoint-20: half of it is missing" in told
    assert "resuming from nothing" in told
