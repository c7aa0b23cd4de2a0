"""Where the tasks of a TensorFlow cluster go, and what each is told."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distributed_training import launchers
from distributed_training.cluster import PLACEMENTS, Cluster
from distributed_training.errors import HostWithheld, PlanError
from distributed_training.fleet import Host
from tests.offers import offer, spec

PORTS = tuple(range(20001, 20065))


def hosts(*slots, **fields):
    return [
        offer(f"gpu{n}", slots=count, ports=PORTS, **fields) for n, count in enumerate(slots, 1)
    ]


def plan(cluster, offers, **fields):
    return launchers.plan(spec(launcher="tensorflow", cluster=cluster, **fields), offers)


def environments(planned):
    """Return the environment of each rank, in the order of ranks."""
    processes = [each for node in planned.nodes for each in node.processes]
    return [each.env for each in sorted(processes, key=lambda each: each.rank)]


def configs(planned):
    return [json.loads(env["TF_CONFIG"]) for env in environments(planned)]


def where(planned):
    """Return the role of each rank by host."""
    return {node.host.name: [rank.role for rank in node.ranks] for node in planned.nodes}


clusters = st.builds(
    Cluster,
    worker_count=st.integers(1, 12),
    parameter_server_count=st.integers(0, 4),
    chief=st.booleans(),
    evaluator_count=st.integers(0, 2),
    placement=st.sampled_from(PLACEMENTS),
    slots_per_worker=st.integers(1, 3),
)


@given(clusters, st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_every_task_is_there_once_and_all_agree_on_the_cluster(cluster, slots):
    try:
        planned = plan(cluster, hosts(*slots))
    except PlanError:
        places = sum(count // cluster.slots_per_worker for count in slots)
        assert places < sum(task.takes_slots for task in cluster.tasks())
        return
    told = configs(planned)
    assert [(c["task"]["type"], c["task"]["index"]) for c in told] == [
        (task.role, task.index) for task in cluster.tasks()
    ]
    assert all(config["cluster"] == told[0]["cluster"] for config in told)
    counts = {role: len(listed) for role, listed in told[0]["cluster"].items()}
    assert counts == Counter(task.role for task in cluster.tasks() if task.role != "evaluator")
    addresses = [address for listed in told[0]["cluster"].values() for address in listed]
    assert len(set(addresses)) == len(addresses)


@given(clusters, st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_a_slot_has_one_task_and_the_head_has_rank_0(cluster, slots):
    places = sum(count // cluster.slots_per_worker for count in slots)
    assume(places >= sum(task.takes_slots for task in cluster.tasks()))
    planned = plan(cluster, hosts(*slots))
    assert planned.head.ranks[0].rank == 0
    for node in planned.nodes:
        taken = [slot for rank in node.ranks for slot in rank.slots]
        assert len(set(taken)) == len(taken)
        assert set(node.slots) == set(taken)
        assert [rank.local_rank for rank in node.ranks] == list(range(len(node.ranks)))
        assert [rank.rank for rank in node.ranks] == sorted(rank.rank for rank in node.ranks)


def test_slots_fill_host_after_host_and_round_robin_deals_to_all():
    cluster = Cluster(worker_count=3, parameter_server_count=1, chief=True, evaluator_count=1)
    assert where(plan(cluster, hosts(4, 2, 2))) == {
        "gpu1": ["chief", "worker 0", "worker 1", "worker 2", "ps 0"],
        "gpu2": ["evaluator 0"],
    }
    dealt = Cluster(3, 1, chief=True, evaluator_count=1, placement="round_robin")
    assert where(plan(dealt, hosts(4, 2, 2))) == {
        "gpu1": ["chief", "worker 2", "ps 0"],
        "gpu2": ["worker 0", "evaluator 0"],
        "gpu3": ["worker 1"],
    }


def test_parameter_servers_need_no_slots_and_are_spread():
    assert where(plan(Cluster(2, 3, placement="round_robin"), hosts(1, 1))) == {
        "gpu1": ["worker 0", "ps 0", "ps 2"],
        "gpu2": ["worker 1", "ps 1"],
    }


def test_the_config_is_that_of_tensorflow_without_empty_lists_and_evaluators_outside():
    cluster = Cluster(1, 1, chief=True, evaluator_count=1, placement="round_robin")
    told = configs(plan(cluster, hosts(2, 1)))
    listed = {
        "chief": ["10.0.0.1:20001"], "worker": ["10.0.0.2:20001"], "ps": ["10.0.0.1:20002"],
    }  # fmt: skip
    assert told[1] == {
        "cluster": listed, "task": {"type": "worker", "index": 0}, "environment": "cloud",
    }  # fmt: skip
    assert told[3]["task"] == {"type": "evaluator", "index": 0}
    assert configs(plan(Cluster(2), hosts(2)))[0]["cluster"] == {
        "worker": ["10.0.0.1:20001", "10.0.0.1:20002"]
    }


def test_an_ipv6_address_is_told_from_its_port():
    host = Host("gpu1", slots=1, address="fd00::1")
    (told,) = configs(plan(Cluster(1), [offer(host=host)]))
    assert told["cluster"] == {"worker": ["[fd00::1]:20001"]}


def test_a_port_is_given_once_on_a_machine_whatever_it_is_called():
    offers = [offer("gpu1", slots=1, machine_id="m"), offer("gpu2", slots=1, machine_id="m")]
    ports = [rank.port for node in plan(Cluster(2), offers).nodes for rank in node.ranks]
    assert set(ports) == {20001, 20002}


def test_the_chosen_port_is_that_of_rank_0_and_of_nobody_else():
    planned = plan(Cluster(2), hosts(2), master_port=20001)
    assert [rank.port for rank in planned.head.ranks] == [20001, 20002]
    assert planned.master_port == 20001


def test_more_tasks_than_a_host_has_ports_are_refused():
    with pytest.raises(PlanError, match=r"gpu1: it has 2 free ports to offer, and more tasks"):
        plan(Cluster(3), [offer("gpu1", slots=3)])


def test_a_rank_has_nothing_of_torch():
    names = set(environments(plan(Cluster(2), hosts(2)))[0])
    assert not names & {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DT_BACKEND"}
    assert {"TF_CONFIG", "DT_ROLE", "DT_RANK", "DT_JOB_ID", "DT_RESULT_FILE"} <= names


def test_each_worker_sees_its_own_gpus_and_a_parameter_server_none():
    cluster = Cluster(2, 1, slots_per_worker=2)
    told = environments(plan(cluster, [offer("gpu1", gpus=4, ports=PORTS)]))
    assert [env["CUDA_VISIBLE_DEVICES"] for env in told] == [
        "GPU-1-0,GPU-1-1", "GPU-1-2,GPU-1-3", "-1",
    ]  # fmt: skip
    assert "CUDA_VISIBLE_DEVICES" not in environments(plan(Cluster(1), hosts(1)))[0]


def test_a_place_is_on_one_host():
    with pytest.raises(PlanError, match=r"2 slots of one host .* gpu1 has 3, gpu2 has 1"):
        plan(Cluster(2, slots_per_worker=2), hosts(3, 1))


def test_free_slots_are_taken_first():
    busy = {"cpu-0": {"job": "other"}}
    offers = [offer("gpu1", slots=2, busy=busy), offer("gpu2", slots=2)]
    planned = plan(Cluster(2), offers)
    assert [slot.name for node in planned.nodes for slot in node.slots] == ["cpu-1", "cpu-0"]
    assert where(planned) == {"gpu1": ["worker 0"], "gpu2": ["worker 1"]}
    assert where(plan(Cluster(4), offers)) == {
        "gpu1": ["worker 0", "worker 1"], "gpu2": ["worker 2", "worker 3"],
    }  # fmt: skip


def test_no_more_hosts_than_nnodes_are_used():
    dealt = Cluster(4, placement="round_robin")
    assert list(where(plan(dealt, hosts(2, 2, 2), nnodes=2))) == ["gpu1", "gpu2"]
    with pytest.raises(PlanError, match="gpu1 has 2, gpu2 has 1"):
        plan(dealt, hosts(2, 1, 1), nnodes=2)


def test_oversubscribed_slots_have_several_tasks():
    planned = plan(Cluster(5), hosts(2, 1), oversubscribe=True)
    assert [len(node.ranks) for node in planned.nodes] == [4, 1]
    assert [len(node.slots) for node in planned.nodes] == [2, 1]


def test_hosts_that_are_drained_are_told_where_the_others_do_not_suffice():
    offers = hosts(1, 1, clock=100.0)
    drained = offer("gpu3", slots=1, drained={"since": 0, "by": "ada", "reason": "fan"})
    assert list(where(plan(Cluster(2), [drained, *offers]))) == ["gpu1", "gpu2"]
    with pytest.raises(HostWithheld, match=r"gpu3 is drained by ada .* undrain gpu3"):
        plan(Cluster(3), [drained, *offers])


def test_the_plan_tells_the_role_of_each_rank():
    told = "\n".join(plan(Cluster(1, 1, chief=True), hosts(2)).describe())
    assert "ranks 0 (chief), 1 (worker 0), 2 (ps 0) on cpu-0, cpu-1" in told


@pytest.mark.parametrize(
    ("cluster", "serving"),
    [
        (Cluster(2, 1), {"ps 0": 0}),
        (Cluster(2, chief=True), {}),
        (Cluster(1, 1, chief=True), {"worker 0": 0, "ps 0": 0}),
        (Cluster(1, evaluator_count=1, evaluator_timeout=5), {"evaluator 0": 5}),
    ],
    ids=str,
)
def test_who_must_end_by_itself_follows_from_the_cluster(cluster, serving):
    ranks = [rank for node in plan(cluster, hosts(4)).nodes for rank in node.ranks]
    assert {rank.role: rank.serves for rank in ranks if rank.serves is not None} == serving


def test_all_hosts_of_the_cluster_are_reached_without_proxies_unless_they_shall_not():
    (process,) = plan(Cluster(2), hosts(1, 1)).head.processes
    assert process.no_proxy == ("10.0.0.1", "10.0.0.2")
    (process,) = plan(Cluster(1, bypass_proxies=False), hosts(1)).head.processes
    assert process.no_proxy == ()


def test_a_user_cannot_set_the_config():
    with pytest.raises(PlanError, match="env sets TF_CONFIG"):
        plan(Cluster(1), hosts(1), env={"TF_CONFIG": "{}"})
