"""Real MPIs on real hosts, which cannot log in to each other."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from dev.setup import hosts_python
from distributed_training.errors import (
    GroupNotFormed,
    JobCancelled,
    JobStalled,
    PlanError,
    PreflightFailed,
    RankFailed,
)
from distributed_training.mpirun import MpiOptions
from distributed_training.plan import JobSpec, Program
from distributed_training.run.job import JobRef
from distributed_training.run.launch import launch
from distributed_training.run.stop import stop
from distributed_training.run.watch import Watcher
from distributed_training.snapshot import snapshot
from tests.fleet.wait import until
from tests.integration.jobs import SCRIPT

# By the MPI that its mpi4py loads; Debian's mpirun starts what was made for a later Open MPI.
ENVIRONMENTS = {
    "openmpi4": "mpi-openmpi",
    "openmpi5": "mpi-openmpi",
    "mpich": "mpi-mpich",
    "intelmpi": "mpi-intelmpi",
}
DEBIAN = "/usr/bin/mpirun.openmpi"
SOON = 20.0  # seconds; a job that waits for what never comes would take the test's limit

HELLO = """
import json, os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
print(json.dumps({name: int(os.environ[name]) for name in names} | {
    "rank": comm.rank, "size": comm.size, "sum": comm.allreduce(comm.rank + 1),
    "host": os.uname().nodename, "stdin": sys.stdin.read(), "cpus": len(os.sched_getaffinity(0)),
    "env": dict(os.environ), "cwd": os.getcwd(), "library": MPI.Get_library_version(),
}), flush=True)
"""


@dataclass(frozen=True)
class Mpi:
    """One MPI of the test hosts."""

    name: str

    @property
    def python(self) -> str:
        """The interpreter of its environment."""
        return str(hosts_python(ENVIRONMENTS[self.name]))

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a specification."""
        program = DEBIAN if self.name == "openmpi4" else None
        return {"launcher": "mpi", "python": self.python, "mpi": MpiOptions(program=program)}


EVERY = pytest.mark.parametrize("mpi", [Mpi(name) for name in ENVIRONMENTS], ids=lambda it: it.name)
TWO = pytest.mark.parametrize("mpi", [Mpi("openmpi5"), Mpi("mpich")], ids=lambda it: it.name)


def left_on(host):
    """Return what is left of a job: our agents and what they have started."""
    words = ("agent.pyz", "hydra", "orted", "prted", "mpirun", "train.py")
    return [each for each in host.processes() if any(word in each.command for word in words)]


def ranks_of(job):
    """Return what each rank printed as JSON."""
    assert job.error is None, job.text
    found = [json.loads(line) for rank in range(job.plan.world_size) for line in job.of_rank(rank)]
    assert len(found) == job.plan.world_size
    return found


@EVERY
def test_ranks_of_two_hosts_form_one_group_and_know_who_they_are(jobs, mpi):
    """Cases B57 and B81; and B50, since only Debian's mpirun is on the PATH of the hosts."""
    env = {"MONTHS": "01 02  03", "MSG": "a\nb", "EMPTY": "", "ODD": "$HOME='x' \"^;=\\ é"}
    seen = ranks_of(jobs.run(HELLO, env=env, **mpi.fields))
    assert [(rank["rank"], rank["size"], rank["sum"]) for rank in seen] == [
        (n, 4, 1 + 2 + 3 + 4) for n in range(4)
    ]
    assert [(rank["RANK"], rank["LOCAL_RANK"], rank["NODE_RANK"]) for rank in seen] == [
        (0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1),
    ]  # fmt: skip
    assert [rank["host"] for rank in seen] == ["gpu1", "gpu1", "gpu2", "gpu2"]
    for rank in seen:
        assert {name: rank["env"][name] for name in env} == env
        assert rank["stdin"] == ""
        assert rank["cwd"] == rank["env"]["DT_NODE_DIR"] + "/work"
        assert rank["env"]["AZ_BATCHAI_MPI_MASTER_NODE"] == rank["env"]["MASTER_ADDR"]
    assert len({rank["cpus"] for rank in seen}) == 1  # bound to no core


@EVERY
def test_a_rank_that_raises_ends_all_others_and_is_named(jobs, mpi):
    """Case B60: the others wait in a collective for ever."""
    script = """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 3:
    raise RuntimeError("no such digit")
MPI.COMM_WORLD.Barrier()
"""
    began = time.monotonic()
    error = jobs.run(script, **mpi.fields).error
    assert time.monotonic() - began < SOON
    assert isinstance(error, RankFailed)
    assert (error.rank, error.host) == (3, "gpu2")
    assert "RuntimeError: no such digit" in error.message
    assert 'File "train.py", line 4, in <module>' in error.message


@EVERY
def test_a_rank_that_leaves_without_a_word_ends_all_others(jobs, mpi):
    """Case B60."""
    script = """
import os
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os._exit(7)
MPI.COMM_WORLD.Barrier()
"""
    began = time.monotonic()
    error = jobs.run(script, **mpi.fields).error
    assert time.monotonic() - began < SOON
    assert isinstance(error, RankFailed)
    assert (error.rank, error.host, error.exit_code) == (1, "gpu1", 7)


@EVERY
def test_a_job_that_is_stopped_lets_its_ranks_save_and_leaves_nothing(jobs, fleet, mpi):
    script = """
import signal, sys, time
from mpi4py import MPI
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
time.sleep(600)
"""

    def end(job):
        time.sleep(1)
        jobs.ask(lambda agents: stop(JobRef.of(job.plan), agents, reason="enough"))

    job = jobs.run(script, when="ready", then=end, **mpi.fields)
    assert isinstance(job.error, JobCancelled)
    assert any("saved" in job.of_rank(rank) for rank in range(4))
    for host in fleet.hosts:
        until(lambda host=host: not left_on(host), f"{left_on(host)} are left on {host.name}")
        assert not host.exec(["ls", "/dev/shm"]).stdout.split()


@TWO
@pytest.mark.parametrize("what", ["mpirun", "daemon"])
def test_an_mpirun_or_a_daemon_that_is_killed_ends_the_job_and_leaves_nothing(
    jobs, fleet, mpi, what
):
    script = """
import time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
time.sleep(600)
"""
    host = fleet["gpu1" if what == "mpirun" else "gpu2"]
    names = ("mpirun", "prterun") if what == "mpirun" else ("prted", "hydra_pmi_proxy")

    def kill(job):
        found = [each for each in host.processes() if each.command.split()[0].endswith(names)]
        host.exec(["kill", "-9", *(str(each.pid) for each in found)])

    began = time.monotonic()
    error = jobs.run(script, when="ready", then=kill, **mpi.fields).error
    assert time.monotonic() - began < SOON
    assert isinstance(error, RankFailed)
    for each in fleet.hosts:
        until(lambda host=each: not left_on(host), f"{left_on(each)} are left on {each.name}")
        assert each.exec(["ls", "/tmp"]).stdout.split() == []


@TWO
def test_one_rank_on_each_host(jobs, mpi):
    seen = ranks_of(jobs.run(HELLO, nproc_per_node=1, **mpi.fields))
    assert [(rank["size"], rank["LOCAL_RANK"], rank["host"]) for rank in seen] == [
        (2, 0, "gpu1"), (2, 0, "gpu2"),
    ]  # fmt: skip


@TWO
def test_hosts_of_different_size(jobs_on, fleet, mpi):
    listed = fleet.hosts_text(slots=2).replace("slots=2", "slots=1", 1)
    seen = ranks_of(jobs_on(fleet, hosts=listed).run(HELLO, **mpi.fields))
    assert [rank["LOCAL_WORLD_SIZE"] for rank in seen] == [1, 2, 2]
    assert {rank["size"] for rank in seen} == {3}


@EVERY
def test_one_host_alone(jobs, mpi):
    seen = ranks_of(jobs.run(HELLO, nnodes=1, **mpi.fields))
    assert [(rank["size"], rank["sum"]) for rank in seen] == [(2, 3), (2, 3)]


def test_an_mpi4py_for_another_mpi_is_refused_before_any_rank(jobs):
    """Each rank would be alone, and all of them would succeed."""
    fields = Mpi("openmpi5").fields
    mpich = Mpi("mpich").python.replace("bin/python", "bin/mpirun")
    with pytest.raises(PreflightFailed, match="gpu2: mpi4py does not fit mpirun"):
        jobs.run(HELLO, **{**fields, "mpi": MpiOptions(program=mpich)})
    for name in ("mpich", "intelmpi"):
        fields = {**Mpi(name).fields, "mpi": MpiOptions(program=DEBIAN)}
        with pytest.raises(PreflightFailed, match="gpu2: mpi4py does not fit mpirun"):
            jobs.run(HELLO, **fields)


def test_an_mpirun_that_refuses_is_heard_wherever_its_daemons_end(jobs):
    options = MpiOptions(arguments=("--bind-to", "core"))
    fields = {**Mpi("openmpi5").fields, "mpi": options, "nproc_per_node": 3, "oversubscribe": True}
    error = jobs.run(HELLO, **fields).error
    assert "more cpus than are available" in " ".join(error.message.split())


def test_ranks_that_are_each_alone_are_no_success(jobs):
    """Hydra and Open MPI's library do not know each other, and a command is not looked into."""
    program = Program("command", (Mpi("openmpi5").python, "train.py"))
    error = jobs.run(HELLO, **{**Mpi("mpich").fields, "program": program}).error
    assert isinstance(error, GroupNotFormed)
    assert "mpi4py" in error.message


def test_a_hung_rank_is_asked_where_it_stands(jobs):
    script = """
import time
from mpi4py import MPI
def late():
    time.sleep(600)
if MPI.COMM_WORLD.rank == 2:
    late()
MPI.COMM_WORLD.Barrier()
"""
    error = jobs.run(script, hang_timeout=3.0, **Mpi("mpich").fields).error
    assert isinstance(error, JobStalled)
    assert "rank 2 on gpu2 stands elsewhere than the others" in error.message


@TWO
def test_torch_meets_over_gloo_by_the_variables_of_its_mpi(jobs, torch_python, mpi):
    """Case B84."""
    script = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(dist.get_world_size(), total.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""
    mpirun = mpi.python.replace("bin/python", "bin/mpirun")
    fields = {**mpi.fields, "python": str(torch_python), "mpi": MpiOptions(program=mpirun)}
    job = jobs.run(script, **fields)
    assert job.error is None, job.text
    assert [job.of_rank(rank)[-1] for rank in range(4)] == ["4 10.0"] * 4


def test_hosts_that_know_no_names_and_have_bridges_and_other_interfaces(jobs_on, make_fleet):
    """Cases B52 and B61: Docker's bridge has the same address on all hosts."""
    hosts = make_fleet(2, interfaces={"gpu1": "eth0", "gpu2": "ens7"})
    for host in hosts.hosts:
        host.forget_names()
        host.add_interface("docker0", "172.17.0.1/16")
        host.add_interface("aaa0", "172.18.0.1/16")
    jobs = jobs_on(hosts, slots=1)
    for name in ENVIRONMENTS:
        seen = ranks_of(jobs.run(HELLO, **Mpi(name).fields))
        assert [(rank["size"], rank["sum"]) for rank in seen] == [(2, 3), (2, 3)], name


def test_hosts_that_listen_on_other_ports_are_reached_there(jobs_on, make_fleet):
    """Case B65: Intel MPI could not run its daemon on the second host, and did not say why."""
    hosts = make_fleet(2)
    hosts["gpu2"].restart_sshd(Port="2222")
    seen = ranks_of(jobs_on(hosts, slots=1).run(HELLO, **Mpi("intelmpi").fields))
    assert [rank["sum"] for rank in seen] == [3, 3]


@pytest.mark.parametrize("name", ["openmpi4", "openmpi5"])
def test_root_may_be_allowed_on_all_hosts(jobs_on, make_fleet, name):
    """Case B56: mpirun was told, and its daemon on the other host was not."""
    hosts = make_fleet(2)
    for host in hosts.hosts:
        keys = f"/home/{host.user}/.ssh/authorized_keys"
        host.restart_sshd(PermitRootLogin="yes", StrictModes="no", AuthorizedKeysFile=keys)
    listed = hosts.hosts_text(slots=1).replace("slots=1", "slots=1 user=root")
    # The home of root is this machine's own.
    jobs = jobs_on(hosts, hosts=listed, work_dir=f"/home/{hosts.hosts[0].user}/jobs")
    fields = Mpi(name).fields
    with pytest.raises(PlanError, match=r"gpu1, gpu2 is root.*allow_run_as_root=True"):
        jobs.run(HELLO, **fields)
    fields["mpi"] = dataclasses.replace(fields["mpi"], allow_run_as_root=True)
    assert [rank["sum"] for rank in ranks_of(jobs.run(HELLO, **fields))] == [3, 3]


@TWO
def test_watchers_may_be_replaced_while_mpirun_starts_and_after(jobs, mpi):
    """What one has begun is done by the next, once."""
    script = """
import time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
time.sleep(4)
MPI.COMM_WORLD.Barrier()
"""
    (jobs.folder / "train.py").write_text(script)

    async def run():
        with snapshot(jobs.folder) as taken:
            async with jobs.agents() as agents:
                name = f"test-replaced-{mpi.name}"
                spec = JobSpec(name, SCRIPT, source=taken.sha256, **mpi.fields)
                plan = await launch(spec, list(agents.values()), owner="0", snapshot=taken)
                ref = JobRef.of(plan)
                for owner, patience in (("1", 0.6), ("2", 1.0), ("3", 2.0)):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(Watcher(ref, agents, owner, print).watch(), patience)
                return await Watcher(ref, agents, "4", print).watch()

    assert asyncio.run(run()).error is None
