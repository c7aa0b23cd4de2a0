"""Jobs of plain processes on real hosts: environment, streams, ends."""

from __future__ import annotations

import asyncio
import json

import pytest

from distributed_training.errors import (
    PlanError,
    PreflightFailed,
    RankFailed,
    SlotsBusy,
    StartFailed,
    TrainingError,
)
from distributed_training.plan import Program
from distributed_training.run.watch import Watcher
from tests.fleet.processes import with_environment

EVERYTHING = "import os, json; print(json.dumps(dict(os.environ)))"


def of_job(job):
    """Return the processes that the job left behind, looked for from outside its hosts."""
    return with_environment(f"DT_JOB_ID={job.plan.spec.job_id}")


def test_every_rank_has_its_place_and_all_agree(jobs):
    job = jobs.run(EVERYTHING)
    assert job.error is None
    seen = [json.loads(job.of_rank(rank)[0]) for rank in range(4)]
    assert [env["RANK"] for env in seen] == ["0", "1", "2", "3"]
    assert [env["LOCAL_RANK"] for env in seen] == ["0", "1", "0", "1"]
    assert [env["NODE_RANK"] for env in seen] == ["0", "0", "1", "1"]
    assert {env["WORLD_SIZE"] for env in seen} == {"4"}
    assert {env["MASTER_ADDR"] for env in seen} == {job.plan.head.address}


def test_the_environment_arrives_byte_for_byte_without_ssh_sending_it(jobs):
    """Cases B20, B57."""
    values = {"FOO": "bar", "MONTHS": "01 02 03", "MSG": "a\nb", "EMPTY": "", "Q": "'\"$HOME=^é"}
    job = jobs.run(EVERYTHING, env=values, nproc_per_node=1)
    for rank in range(2):
        env = json.loads(job.of_rank(rank)[0])
        assert {name: env[name] for name in values} == values


def test_variables_of_foreign_launchers_do_not_reach_a_rank(jobs_on, make_fleet):
    hosts = make_fleet(1)
    hosts["gpu1"].write_file(
        ".bashrc", "export RANK=7 SLURM_PROCID=3 OMPI_COMM_WORLD_SIZE=9 KEPT=1\n"
    )
    env = json.loads(jobs_on(hosts, slots=1).run(EVERYTHING).of_rank(0)[0])
    assert env["KEPT"] == "1"
    assert env["RANK"] == "0"
    assert not [name for name in env if name.startswith(("SLURM_", "OMPI_"))]


def test_a_setting_of_one_host_is_seen_there_alone(jobs):
    """Case B48."""
    by_host = {"gpu1": {"NCCL_SOCKET_IFNAME": "eno1"}, "gpu2": {"NCCL_SOCKET_IFNAME": "eth0"}}
    job = jobs.run("import os; print(os.environ['NCCL_SOCKET_IFNAME'])", host_env=by_host)
    assert [job.of_rank(rank) for rank in range(4)] == [["eno1"], ["eno1"], ["eth0"], ["eth0"]]


def test_a_rank_is_the_same_program_as_on_the_worker_and_starts_in_its_source(jobs):
    job = jobs.run("import os; print(os.listdir())", nproc_per_node=1)
    assert job.of_rank(1) == ["['outputs', 'train.py']"]


def test_a_program_that_reads_stdin_finds_its_end(jobs):
    """Case B28."""
    job = jobs.run("input()", nproc_per_node=1)
    assert "EOFError" in "".join(job.error.log_tail)


def test_a_quiet_rank_is_left_in_peace(jobs):
    """Case B23: nothing is printed for longer than any timeout of a connection."""
    script, quiet = "import time; time.sleep(12)", {"host_timeout": 8.0, "check_group": False}
    job = jobs.run(script, nproc_per_node=1, **quiet)
    assert job.error is None
    assert not job.lines


def test_the_first_failure_is_named_and_ends_the_ranks_of_all_hosts(jobs, fleet):
    """Cases B31, B32."""
    script = """
import os, time
print("here", flush=True)
if os.environ["RANK"] == "2":
    raise SystemExit(3)
time.sleep(10000)
"""
    job = jobs.run(script)
    assert isinstance(job.error, RankFailed)
    assert (job.error.rank, job.error.host, job.error.exit_code) == (2, "gpu2", 3)
    assert not of_job(job)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_signal_that_ends_a_rank_is_named(jobs, name):
    """Case B32."""
    script = f"""
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.{name})
time.sleep(10000)
"""
    job = jobs.run(script)
    assert (job.error.rank, job.error.signal) == (1, name)


def test_a_traceback_is_in_the_verdict(jobs):
    job = jobs.run("def f(): raise ValueError('no such layer')\nf()", nproc_per_node=1)
    assert "ValueError: no such layer" in job.error.message
    assert "line 1, in f" in job.error.message


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "10000"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(10000)
    os._exit(0)
print("here", flush=True)
if os.environ["RANK"] == "3":
    time.sleep(1)
    os._exit(9)
time.sleep(10000)
"""


def test_ranks_that_ignore_the_signal_are_ended_with_all_their_descendants(jobs, fleet):
    """Cases B25, B36."""
    bystander = fleet["gpu1"].exec(["sh", "-c", "sleep 10000 >/dev/null 2>&1 & echo $!"])
    job = jobs.run(STUBBORN, grace_period=2.0)
    assert job.error.exit_code == 9
    assert not of_job(job)
    alive = {process.pid for process in fleet["gpu1"].processes()}
    assert int(bystander.stdout) in alive
    fleet["gpu1"].exec(["kill", bystander.stdout.strip()])


def test_lost_connections_cost_no_line_and_do_not_disturb_ranks(jobs, fleet):
    """Case B28: what was started survives the connection that started it."""
    script = """
import time
for n in range(60):
    print("line", n, flush=True)
    time.sleep(0.1)
"""

    def cut(job):
        for host in fleet.hosts:
            host.drop_connections()

    job = jobs.run(script, when="line 20", then=cut)
    assert job.error is None
    for rank in range(4):
        assert job.of_rank(rank) == [f"line {n}" for n in range(60)]
    assert "trying again" in job.text


def test_lines_show_while_the_job_runs(jobs):
    """Case B07."""
    ended = []

    def seen(job):
        ended.append(job.outcome)

    job = jobs.run("import time; print('start'); time.sleep(3)", when="start", then=seen)
    assert job.error is None
    assert ended == [None]


def test_characters_are_never_cut(jobs):
    """Case B01."""
    job = jobs.run('print("x" * 16383 + "é" * 40000)', nproc_per_node=1)
    assert job.text.count("é") == 80000
    assert "\ufffd" not in job.text


def test_a_long_line_does_not_end_the_watch(jobs):
    """Case B05."""
    job = jobs.run('import sys; sys.stdout.write("a" * 5_000_000 + "\\nEND\\n")', nproc_per_node=1)
    assert job.error is None
    assert job.of_rank(0)[-1] == "END"
    assert sum(line.count("a") for line in job.of_rank(0)) == 5_000_000


def test_both_streams_are_read_at_once(jobs):
    """Case B04."""
    script = """
import sys
for n in range(8192):
    sys.stdout.write("o" * 1023 + "\\n")
    sys.stderr.write("e" * 1023 + "\\n")
"""
    job = jobs.run(script, nnodes=1, nproc_per_node=1)
    assert job.error is None
    assert len(job.of_rank(0)) == 16384


def test_a_slot_in_use_is_refused_with_its_holder(jobs):
    refused = []

    def second(job):
        try:
            jobs.run("pass")
        except TrainingError as error:
            refused.append(error)

    job = jobs.run("import time; print('on'); time.sleep(4)", when="on", then=second)
    assert job.error is None
    (error,) = refused
    assert isinstance(error, SlotsBusy)
    assert "gpu1" in error.message
    assert "gpu2" in error.message
    assert job.plan.spec.job_id in error.message


def test_two_jobs_on_the_same_hosts_meet_at_ports_of_their_own(jobs_on, fleet):
    """Case B41."""
    jobs = jobs_on(fleet, slots=4)
    ports = []

    def second(first):
        ports.append(jobs.run("pass", nproc_per_node=2).plan.master_port)

    script = "import time; print('on'); time.sleep(4)"
    job = jobs.run(script, when="on", then=second, nproc_per_node=2)
    assert job.error is None
    assert ports
    assert job.plan.master_port not in ports


def test_a_port_that_the_user_gave_and_somebody_holds_is_refused_with_the_pid(jobs, fleet):
    """Case B41."""
    listen = (
        "import socket,sys,time; s=socket.socket(); s.bind(('',29500)); s.listen(); "
        "print(flush=True); time.sleep(60)"
    )
    started = fleet["gpu1"].exec(
        ["sh", "-c", f'python3 -c "{listen}" >/dev/null 2>&1 & echo $!; sleep 1']
    )
    pid = started.stdout.strip()
    try:
        with pytest.raises(PreflightFailed, match=rf"gpu1: .*29500.*{pid}"):
            jobs.run("pass", master_port=29500)
    finally:
        fleet["gpu1"].exec(["kill", pid])


def test_every_host_that_is_not_ready_is_named_and_nothing_is_left(jobs, fleet):
    with pytest.raises(PreflightFailed) as caught:
        jobs.run("pass", python="/nowhere/python")
    assert "gpu1: " in caught.value.message
    assert "gpu2: " in caught.value.message
    assert "/nowhere/python" in caught.value.message
    assert jobs.run("pass").error is None  # no slot is held


def test_a_program_that_cannot_be_executed_is_named_and_nothing_is_left(jobs):
    with pytest.raises(StartFailed, match=r"gpu2: .*nothing-here"):
        jobs.run("pass", program=Program("command", ("nothing-here",)))
    assert jobs.run("pass").error is None


def test_a_setup_that_fails_is_told_with_what_it_said(jobs):
    with pytest.raises(PreflightFailed, match="no space for wheels"):
        jobs.run("pass", setup="echo no space for wheels; exit 4")


def test_setup_runs_once_a_node_before_the_ranks(jobs):
    job = jobs.run("print(open('made').read())", setup="echo $NODE_RANK >> made")
    assert [job.of_rank(rank)[0] for rank in range(4)] == ["0", "0", "1", "1"]


def test_hosts_that_cannot_be_reached_are_all_named(jobs_on, make_fleet):
    hosts = make_fleet(3)
    jobs = jobs_on(hosts)
    hosts["gpu2"].cut_cable()
    hosts["gpu3"].power_cut()
    with pytest.raises(TrainingError) as caught:
        jobs.run("pass")
    assert "gpu2" in caught.value.message
    assert "gpu3" in caught.value.message


def test_a_peer_that_cannot_reach_the_head_is_told_before_any_rank_starts(jobs_on, make_fleet):
    """Case B39."""
    hosts = make_fleet(2)
    head = hosts["gpu1"].address
    wrong = hosts.hosts_text(slots=1).replace(f"address={head}", "address=10.255.0.1")
    with pytest.raises(PreflightFailed, match=r"gpu2: .*10\.255\.0\.1"):
        jobs_on(hosts, hosts=wrong).run("print('never')")


def test_ranks_see_the_gpus_that_the_fleet_names(jobs_on, make_fleet):
    """Case B47: the driver's list is all that is made up here."""
    hosts = make_fleet(1)
    rows = "".join(f"GPU-{n:04d}, {n}, NVIDIA Test, 81559\\n" for n in range(8))
    hosts["gpu1"].write_file(
        "bin/nvidia-smi",
        f"#!/bin/sh\ncase $1 in --query-gpu*) printf '{rows}';; esac\n",
        mode=0o755,
    )
    hosts["gpu1"].write_file(".bashrc", "export PATH=$HOME/bin:$PATH\n")
    listed = hosts.hosts_text(slots=2).replace("slots=2", "slots=2 gpus=4,5")
    script = "import os; print(os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'])"
    job = jobs_on(hosts, hosts=listed).run(script)
    assert job.of_rank(0) == ["0 GPU-0004,GPU-0005"]
    assert job.of_rank(1) == ["1 GPU-0004,GPU-0005"]
    with pytest.raises(PlanError, match=r"gpu1: .*nvidia-smi on the host lists"):
        jobs_on(hosts, hosts=listed.replace("4,5", "4,9")).run(script)


def test_slots_are_free_only_when_no_process_of_the_job_lives(jobs, fleet):
    """The supervisor and its watchdog are killed; the ranks hold their slots."""
    refused = []

    def kill_agents(job):
        pids = [p.pid for p in fleet["gpu1"].processes() if "AGENT_BUNDLE" in p.command]
        for pid in pids:
            fleet["gpu1"].exec(["kill", "-9", str(pid)], check=False)  # one may just end
        try:
            jobs.run("pass", nnodes=1)
        except SlotsBusy as error:
            refused.append(error)

    job = jobs.run("import time; print('on'); time.sleep(30)", when="on", then=kill_agents)
    assert job.error is not None
    assert job.error.host == "gpu1"
    assert not of_job(job)


def test_the_port_of_each_host_is_used_throughout(jobs_on, make_fleet):
    """Case B69: upload, launch, log, kill."""
    hosts = make_fleet(2)
    hosts["gpu1"].restart_sshd(Port="2222")
    hosts["gpu2"].restart_sshd(Port="2223")
    script = "import os, time; print('on'); time.sleep(0 if os.environ['RANK'] != '3' else 1); 1/0"
    job = jobs_on(hosts).run(script)
    assert job.error.exit_code == 1
    assert not of_job(job)


def test_a_login_script_that_talks_spoils_nothing(jobs_on, make_fleet):
    """Case B18: source, start and log pass a shell that greets."""
    hosts = make_fleet(1)
    hosts["gpu1"].noisy_bashrc()
    job = jobs_on(hosts, slots=1).run("print('clean')")
    assert job.lines == ["[rank 0 gpu1] clean"]


def test_a_source_arrives_with_its_modes_and_links(jobs, fleet):
    """Cases B87, B89."""
    files = {"run.sh": ("#!/bin/sh\necho ran", 0o755), "secret": ("s", 0o600)}

    def furnish(source):
        for name, (text, mode) in files.items():
            (source / name).write_text(text)
            (source / name).chmod(mode)
        (source / "link").symlink_to("nowhere")
        (source / "fixed").mkdir()
        (source / "fixed" / "file").write_text("")
        (source / "fixed").chmod(0o555)

    script = """
import os, subprocess
print(subprocess.run("./run.sh", capture_output=True, text=True).stdout.strip())
print(oct(os.stat("secret").st_mode & 0o777), os.readlink("link"))
"""
    job = jobs.run(script, nproc_per_node=1, furnish=furnish)
    assert job.of_rank(1) == ["ran", "0o600 nowhere"]


def test_an_unchanged_source_is_sent_to_a_host_once(jobs):
    script = "print('the same')"
    jobs.run(script)

    async def offers_it(agents, sha):
        return [(await agent.call("offer", source=sha))["has_source"] for agent in agents.values()]

    assert jobs.ask(offers_it, jobs.run(script).plan.spec.source) == [True, True]


def test_a_later_watcher_learns_of_an_end_that_the_last_one_has_read(jobs):
    """A worker that reads the last line just before its ten seconds are over hands the job on."""
    job = jobs.run("print('hello')")

    async def again(agents):
        watcher = Watcher(job.outcome.ref, agents, "later", job.lines.append)
        return await asyncio.wait_for(watcher.watch(), 20)

    assert jobs.ask(again).error is None
    assert sum("hello" in line for line in job.lines) == 4
