"""What a host has of InfiniBand, and which network libraries say that they use."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distributed_training.agent.host.infiniband import infiniband
from distributed_training.agent.host.transports import Transports, over_sockets

# Lines as their libraries print them, from public reports: NVIDIA/nccl#952, #226, #1925;
# openucx/ucx#9560, open-mpi/ompi#9080 and #6883, parthenon-hpc-lab/parthenon#1260; and Intel's
# developer reference.
FAST = [
    "gpu1:2620971:2620971 [3] NCCL INFO Using network IB",
    "gpu1:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm",
    "gpu1:921:1148 [2] NCCL INFO Using network IBext",
    "gpu1:460770:460842 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA",
    "[1624984398.153330] [r39c2t5n4:22213:0]     ucp_worker.c:1720 UCX  INFO  ep_cfg[1]: "
    "tag(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1);",
    "[1750940428.181226] [jpbo-007-31:2814548:0]      ucp_worker.c:1903 UCX  INFO    ucp_context_0 "
    "inter-node cfg#8 tag(rc_mlx5/mlx5_2:1 rc_mlx5/mlx5_0:1)",
    "[1750940428.181226] [n1:28:0] ucp_worker.c:1903 UCX  INFO    0x252d990 inter-node cfg#3 "
    "tag(dc_mlx5/mlx5_0:1) am(tcp/eth0)",
    "[0] MPI startup(): libfabric provider: mlx",
    "[0] MPI startup(): libfabric provider: verbs;ofi_rxm",
]
SLOW = [
    "gpu2:45305:45340 [0] NCCL INFO Using network Socket",
    "gpu2:45305:45340 [0] NCCL INFO Assigned NET plugin Socket to comm",
    "gpu2:45305:45340 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    "[1703390000.000001] [n1:77:0] ucp_worker.c:1783 UCX  INFO  ep_cfg[3]: tag(tcp/ib1 tcp/ib0)",
    "[1703390000.000001] [n1:77:0] ucp_worker.c:1855 UCX  INFO    ucp_context_0 inter-node cfg#2 "
    "tag(tcp/eth0)",
    "[0] MPI startup(): libfabric provider: tcp;ofi_rxm",
    "[0] MPI startup(): libfabric provider: tcp",
]
NEITHER = [
    "gpu1:924:924 [5] NCCL INFO Bootstrap : Using ibp12s0:10.149.0.32<0>",
    "gpu1:45361:45361 [0] NCCL INFO NET/IB : No device found.",
    "gpu1:45305:45305 [0] NCCL INFO NET/Socket : Using [0]ens3:172.31.12.210<0>",
    "gpu1:26:26 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.25.30.42<0>",
    "gpu1:26:26 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/CUMEM",
    "[1566814148.941358] [h:3473 :0] ucp_worker.c:1468 UCX  INFO  ep_cfg[1]: tag(self/memory "
    "cma/memory);",
    "[1703390000.000001] [n1:77:0] ucp_worker.c:1783 UCX INFO ep_cfg[2]: tag(sysv/memory "
    "cma/memory tcp/ib1)",
    "[1750940426.960564] [n1:5:0] ucp_worker.c:1903 UCX  INFO    ucp_context_0 intra-node cfg#4 "
    "tag(sysv/memory cma/memory rc_mlx5/mlx5_3:1)",
    "[0] MPI startup(): Intel(R) MPI Library, Version 2021.18",
    "loss=0.3, saved via NET/Socket/0",
]


@pytest.mark.parametrize("line", FAST)
def test_a_connection_over_infiniband_is_told(line):
    assert over_sockets(line) is False


@pytest.mark.parametrize("line", SLOW)
def test_a_connection_over_sockets_is_told(line):
    assert over_sockets(line) is True


@pytest.mark.parametrize("line", NEITHER)
def test_what_tells_of_no_connection_between_hosts_proves_nothing(line):
    assert over_sockets(line) is None


@pytest.fixture
def node(tmp_path):
    (tmp_path / "logs").mkdir()
    return SimpleNamespace(
        at=lambda *parts: str(tmp_path.joinpath(*parts)),
        hide=lambda text: text.replace("secret", "***"),
    )


def test_logs_are_read_as_they_grow_and_by_whole_lines(node, tmp_path):
    transports = Transports(node, wanted=True)
    log = tmp_path / "logs/network-nccl-42.log"
    log.write_text(f"{NEITHER[0]}\n{FAST[0]}")
    transports.look(at_once=True)
    assert (transports.fast, transports.slow) == ("", "")
    with log.open("a") as file:
        file.write(f" secret\n{FAST[1]}\n")
    transports.look(at_once=True)
    assert (transports.fast, transports.slow) == (f"{FAST[0]} ***", "")
    assert (transports.news(), transports.news()) == (f"{FAST[0]} ***", "")
    transports.hear(["epoch 1", SLOW[3]])  # of a rank
    assert transports.slow == SLOW[3]


def test_nobody_looks_where_any_network_will_do(node, tmp_path):
    (tmp_path / "logs/network-nccl-7.log").write_text(SLOW[0] + "\n")
    transports = Transports(node, wanted=False)
    transports.look(at_once=True)
    transports.hear(SLOW)
    assert (transports.fast, transports.slow) == ("", "")


def test_ports_and_device_files_are_told_as_the_kernel_shows_them(tmp_path):
    ports, devices = tmp_path / "class", tmp_path / "dev"
    assert infiniband(str(ports), str(devices)) == {}
    for name, state in {"mlx5_0": "4: ACTIVE\n", "mlx5_1": "1: DOWN\n"}.items():
        (ports / name / "ports/1").mkdir(parents=True)
        (ports / name / "ports/1/state").write_text(state)
    devices.mkdir()
    (devices / "uverbs0").touch()
    (devices / "uverbs1").symlink_to("nowhere")
    (devices / "rdma_cm").touch()
    assert infiniband(str(ports), str(devices)) == {
        "ports": {"mlx5_0:1": "ACTIVE", "mlx5_1:1": "DOWN"},
        "files": [str(devices / "uverbs0"), str(devices / "uverbs1")],
        "closed": [str(devices / "uverbs1")],
    }
