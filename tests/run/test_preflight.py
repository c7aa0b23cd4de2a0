"""What hosts tell of themselves, judged; and whom a launch leaves out."""

from __future__ import annotations

import re

import pytest

from distributed_training.errors import HostWithheld
from distributed_training.placing import place
from distributed_training.run.preflight import GIB, Preflight, of_offer, of_versions
from tests.offers import offer, spec

FIT = {"disk_free": 100 * GIB, "facts": {"shm_free": 8 * GIB, "memlock": None}}


@pytest.mark.parametrize(
    ("fields", "severity", "words"),
    [
        ({"disk_free": GIB // 2}, "failure", "512 MiB are free for .*, 1.0 GiB are needed"),
        ({"clock_offset": -4.5, "round_trip": 1.0}, "warning", "-4 s off"),
        ({"facts": {"shm_free": 64 << 20}}, "warning", "64 MiB are free"),
        ({"facts": {"infiniband": True, "memlock": 8 << 20}}, "warning", "only 8 MiB"),
        ({"facts": {"gpu_devices": 8}}, "failure", "8 GPUs, but nvidia-smi lists none"),
        ({"addresses": {}}, "warning", "none of its interfaces has the address 10.0.0.1"),
    ],
)
def test_what_is_wrong_is_told_with_the_numbers(fields, severity, words):
    (finding,) = of_offer(offer(**(FIT | fields)))
    assert (finding.host, finding.severity) == ("gpu1", severity)
    assert re.search(words, finding.why)
    assert finding.do


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"clock_offset": 3.5, "round_trip": 1.0},
        {"facts": {"memlock": 8 << 20}},
        {"facts": {"infiniband": True, "memlock": None}},
        {"ssh_address": "gpu1.example.org"},
    ],
    ids=["fit", "clock within what the question took", "no InfiniBand", "unlimited", "name"],
)
def test_what_is_in_order_is_not_told(fields):
    assert list(of_offer(offer(**(FIT | fields)))) == []


READY = {"ports": {"mlx5_0:1": "ACTIVE"}, "files": ["/dev/infiniband/uverbs0"], "closed": []}


@pytest.mark.parametrize(
    ("found", "memlock", "words"),
    [
        ({}, None, "there is no /dev/infiniband/uverbs0"),
        ({**READY, "files": []}, None, "there is no /dev/infiniband/uverbs0"),
        ({**READY, "ports": {}}, None, "no port is active: there is none"),
        (
            {**READY, "ports": {"mlx5_0:1": "DOWN", "mlx5_1:1": "INIT"}},
            None,
            "no port is active: mlx5_0:1 is DOWN, mlx5_1:1 is INIT",
        ),
        ({**READY, "closed": READY["files"]}, None, "ada may not open /dev/infiniband/uverbs0"),
        (READY, 8 << 20, "only 8 MiB may be locked"),
    ],
)
def test_a_host_that_cannot_use_infiniband_is_refused_if_that_is_needed(found, memlock, words):
    host = offer(user="ada", disk_free=FIT["disk_free"], facts={
        "infiniband": found, "memlock": memlock, "shm_free": 8 * GIB,
    })  # fmt: skip
    assert Preflight.of([host]).failures() == []
    (failure,) = Preflight.of([host], infiniband=True).failures()
    assert failure.host == "gpu1"
    assert words in failure.why
    assert failure.do


def test_a_host_that_can_use_infiniband_is_not_refused():
    ports = {"mlx5_0:1": "DOWN", "mlx5_1:1": "ACTIVE"}
    facts = {"infiniband": {**READY, "ports": ports}, "memlock": None}
    assert (
        Preflight.of([offer(disk_free=FIT["disk_free"], facts=facts)], infiniband=True).findings
        == []
    )


@pytest.mark.parametrize(
    ("found", "odd"),
    [
        ([{"python": "3.11.2"}, {"python": "3.11.2"}], []),
        ([{"python": "3.11.2"}, {"python": "3.11.9"}], [("b", "python", "warning")]),
        ([{"python": "3.11.2"}, {"python": "3.12.0"}], [("b", "python", "failure")]),
        ([{"torch": "2.6.0+cpu"}, {"torch": "2.6.0+cu124"}], [("b", "torch", "failure")]),
        ([{"torch": "2"}, {"ray": "1"}], [("b", "torch", "failure"), ("b", "ray", "warning")]),
        ([{"python": "3.11"}, {"ray": "2.9", "python": "3.11"}], [("b", "ray", "warning")]),
        ([{"torch": "2.6.0"}, {}], []),
        ([{"jax": "1"}, {"jax": "2"}, {"jax": "2"}], [("a", "jax", "failure")]),
    ],
)
def test_hosts_that_differ_from_most_others_are_told(found, odd):
    findings = of_versions(dict(zip("abc", found, strict=False)))
    assert [(each.host, each.check, each.severity) for each in findings] == odd


def test_the_table_has_a_row_for_hosts_that_did_not_answer():
    table = Preflight.of([offer(**FIT)]).table(["gpu1", "gpu2"])
    assert [line.split()[:3] for line in table.splitlines()] == [
        ["host", "state", "Python"],
        ["gpu1", "ok", "-"],
        ["gpu2", "ok", "-"],
    ]


DRAINED = {"drained": {"since": 0.0, "by": "ada", "reason": "fans"}}
FAULTY = {"fault": {"since": 1000.0, "reason": "Xid 79"}, "clock": 1500.0}


@pytest.mark.parametrize("why", [DRAINED, FAULTY], ids=["drained", "faulty"])
def test_a_withheld_host_is_left_out_or_named(why):
    offers = [offer("gpu1", **why), offer("gpu2"), offer("gpu3", busy={"cpu-0": {}})]
    plan = place(spec(nnodes=2, quarantine=600), offers)
    assert [node.host.name for node in plan.nodes] == ["gpu2", "gpu3"]
    for nnodes in (None, 3):
        with pytest.raises(HostWithheld) as refused:
            place(spec(nnodes=nnodes, quarantine=600), offers)
        assert "the job needs 3 of 3 hosts, but gpu1 is " in refused.value.message
        assert refused.value.message.endswith("or go on without with nnodes=2")


@pytest.mark.parametrize(("quarantine", "clock"), [(0, 1001.0), (600, 1600.0)], ids=["off", "over"])
def test_a_fault_counts_for_as_long_as_the_fleet_states(quarantine, clock):
    faulty = offer("gpu1", **(FAULTY | {"clock": clock}))
    assert place(spec(quarantine=quarantine), [faulty]).world_size == 1
