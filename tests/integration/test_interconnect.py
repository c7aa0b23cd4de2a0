"""InfiniBand that was asked for: hosts without it, and libraries that pass it over."""

from __future__ import annotations

import pytest

from dev.setup import hosts_python
from distributed_training.errors import InterconnectNotUsed, PreflightFailed, RankFailed
from distributed_training.mpirun import MpiOptions
from distributed_training.run import preflight

DEBIAN = "/usr/bin/mpirun.openmpi"  # with UCX
# As root: an adapter as the kernel shows it, in folders that only this host sees.
ADAPTER = """set -e
mkdir /tmp/dev && mount -t tmpfs -o mode=755 tmpfs /tmp/dev
for name in null zero full random urandom tty; do
    touch /tmp/dev/$name
    mount --bind /dev/$name /tmp/dev/$name
done
mkdir /tmp/dev/shm /tmp/dev/pts /tmp/dev/infiniband
for name in shm pts; do mount --rbind /dev/$name /tmp/dev/$name; done
cp -a /dev/fd /dev/ptmx /tmp/dev
touch /tmp/dev/infiniband/uverbs0 && chmod 666 /tmp/dev/infiniband/uverbs0
mount --rbind /tmp/dev /dev
mount -t tmpfs -o mode=755 tmpfs /sys/class
mkdir -p /sys/class/infiniband/mlx5_0/ports/1
echo '4: ACTIVE' > /sys/class/infiniband/mlx5_0/ports/1/state
prlimit --memlock=8388608 --pid "$(cat /run/sshd.pid)"
"""
SUM = """
from mpi4py import MPI
import time
print(MPI.COMM_WORLD.allreduce(1), flush=True)
time.sleep({seconds})
"""


@pytest.fixture(scope="module")
def python():
    return str(hosts_python("mpi-openmpi"))


def test_hosts_without_infiniband_are_refused_with_the_remedy(jobs, python):
    with pytest.raises(PreflightFailed) as refused:
        jobs.run(SUM, python=python, interconnect="infiniband")
    for host in ("gpu1", "gpu2"):
        assert f"{host}: InfiniBand: there is no /dev/infiniband/uverbs0" in refused.value.message
    assert "modprobe ib_uverbs" in refused.value.message


def test_one_host_needs_no_network(jobs):
    job = jobs.run("print('trained')", nnodes=1, interconnect="infiniband", check_group=False)
    assert job.error is None, job.text


def test_an_adapter_is_no_use_where_too_little_may_be_locked(jobs_on, make_fleet):
    hosts = make_fleet(2)
    hosts["gpu1"].exec(["sh", "-c", ADAPTER], user="root")
    with pytest.raises(PreflightFailed) as refused:
        jobs_on(hosts).run(SUM, interconnect="infiniband")
    assert "gpu1: memlock: only 8 MiB may be locked" in refused.value.message
    assert "gpu1: InfiniBand" not in refused.value.message
    assert "gpu2: InfiniBand: there is no /dev/infiniband/uverbs0" in refused.value.message


@pytest.mark.parametrize("seconds", [600, 0], ids=["at work", "done"])
def test_ranks_that_talk_over_sockets_are_ended_with_what_shows_it(
    jobs, python, monkeypatch, seconds
):
    """UCX itself tells of it; its hosts are let in although they have no adapter."""
    monkeypatch.setattr(preflight, "of_infiniband", lambda offer: ())
    # By themselves, UCX and Open MPI would not use TCP where InfiniBand is wanted.
    tcp = ("--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any")
    options = MpiOptions(program=DEBIAN, arguments=tcp)
    asked = {"launcher": "mpi", "python": python, "mpi": options, "interconnect": "infiniband"}
    error = jobs.run(SUM.format(seconds=seconds), **asked).error
    assert isinstance(error, InterconnectNotUsed), error
    assert "inter-node cfg" in error.message or "ep_cfg" in error.message
    assert "tcp/" in error.message


def test_an_open_mpi_that_has_no_infiniband_does_not_fall_back_to_tcp(jobs, python, monkeypatch):
    monkeypatch.setattr(preflight, "of_infiniband", lambda offer: ())
    options = MpiOptions(program=DEBIAN)
    asked = {"launcher": "mpi", "python": python, "mpi": options, "interconnect": "infiniband"}
    job = jobs.run(SUM.format(seconds=0), **asked)
    assert isinstance(job.error, RankFailed), job.text
    assert not any("4" in job.of_rank(rank) for rank in range(4))


def test_a_job_whose_libraries_tell_nothing_is_warned_of(jobs, monkeypatch):
    monkeypatch.setattr(preflight, "of_infiniband", lambda offer: ())
    job = jobs.run("print('trained')", interconnect="infiniband", check_group=False)
    assert job.error is None, job.text
    assert "WARNING: whether InfiniBand was used is not known" in job.text


@pytest.mark.parametrize("name", ["openmpi4", "openmpi5", "mpich", "intelmpi"])
def test_tcp_can_be_asked_of_every_mpi(jobs, name):
    environment = name.rstrip("45")
    options = MpiOptions(program=DEBIAN if name == "openmpi4" else None)
    fields = {"python": str(hosts_python(f"mpi-{environment}")), "mpi": options}
    job = jobs.run(SUM.format(seconds=0), launcher="mpi", interconnect="tcp", **fields)
    assert job.error is None, job.text
    assert [job.of_rank(rank)[-1] for rank in range(4)] == ["4"] * 4
