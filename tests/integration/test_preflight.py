"""What a launch finds wrong before any rank starts, on real hosts."""

from __future__ import annotations

import asyncio
import re

import pytest

from distributed_training.errors import PreflightFailed
from distributed_training.fleet import Host
from distributed_training.plan import Program
from distributed_training.run.agents import HostAgent
from distributed_training.run.launch import launch
from distributed_training.run.mesh import mesh
from distributed_training.transport.local import LocalTransport
from tests.offers import spec

SYSTEMD = """mkdir -p /run/systemd/system
cat > /home/trainer/bin/loginctl <<END
#!/bin/sh
echo "\\$*" >> /home/trainer/asked
case "\\$*" in
show-session*) echo KillUserProcesses={kill}; echo RemoveIPC={ipc};;
*enable-linger) exit {refused};;
esac
END
chmod 755 /home/trainer/bin/loginctl"""


def on_path(host) -> None:
    """Let what is in ~/bin be found by commands that come over SSH."""
    host.exec(["mkdir", "-p", "bin"])
    host.write_file(".bashrc", "export PATH=$HOME/bin:$PATH\n")


def systemd(host, *, kill="no", ipc="yes", refused=0) -> None:
    """Let a host have a logind, as far as its users see one."""
    on_path(host)
    host.exec(["sh", "-c", SYSTEMD.format(kill=kill, ipc=ipc, refused=refused)], user="root")


def interpreter(host, **versions: str) -> str:
    """Make a Python on a host that has packages, and return its name."""
    on_path(host)
    for name, version in versions.items():
        text = f"Name: {name}\nVersion: {version}\n"
        host.write_file(f"site/{name}-{version}.dist-info/METADATA", text)
    script = '#!/bin/sh\nPYTHONPATH=$HOME/site exec python3 "$@"\n'
    host.write_file("bin/training-python", script, mode=0o755)
    return "training-python"


def log_of(jobs, **fields) -> list[str]:
    """Launch a job that does nothing, and return what the launch tells."""
    lines: list[str] = []

    async def start(agents):
        program = spec(job_id=f"log-{id(lines)}", **fields)
        await launch(program, list(agents.values()), owner="me", log=lines.append)

    jobs.ask(start)
    return lines


def test_a_launch_tells_a_line_for_each_host(jobs_on, make_fleet):
    hosts = make_fleet(2)
    names = [interpreter(host, torch="2.6.0") for host in hosts.hosts]
    for host in hosts.hosts:
        host.write_file("train.py", "pass")
    program = Program("script", "/home/trainer/train.py")
    lines = log_of(jobs_on(hosts, slots=1), python=names[0], program=program)
    assert lines[0] == "Preflight of 2 hosts:"
    assert [line.split()[0] for line in lines[1:]] == ["gpu1:", "gpu2:"]
    for line, host in zip(lines[1:], hosts.hosts, strict=True):
        assert re.search(r": ok, Python 3\.[\d.]+, torch 2\.6\.0, no GPU, \d+ CPUs, ", line)
        assert line.endswith(f"GiB free, eth0 {host.address}")


def test_hosts_with_different_frameworks_are_refused(jobs_on, make_fleet):
    hosts = make_fleet(3)
    versions = ("2.6.0", "2.6.0", "2.5.1")
    names = [interpreter(host, torch=v) for host, v in zip(hosts.hosts, versions, strict=True)]
    with pytest.raises(PreflightFailed) as caught:
        jobs_on(hosts).run("print('never')", python=names[0])
    assert caught.value.message.startswith("gpu3: torch: it has 2.5.1, and gpu1 has 2.6.0; install")
    assert "\n" not in caught.value.message


def test_a_host_that_lacks_disk_is_refused_with_the_numbers(jobs_on, make_fleet):
    hosts = make_fleet(2)
    small = "mkdir /var/tmp/small && mount -t tmpfs -o size=80m,mode=1777 small /var/tmp/small"
    for host in hosts.hosts:
        host.exec(["sh", "-c", small], user="root")
    with pytest.raises(PreflightFailed) as caught:
        jobs_on(hosts, work_dir="/var/tmp/small/ours").run("print('never')")
    for line, host in zip(caught.value.message.splitlines(), hosts.hosts, strict=True):
        assert f"{host.name}: disk: 80 MiB are free for /var/tmp/small/ours, 1.0 GiB" in line


def test_pairs_of_hosts_that_do_not_reach_each_other_are_refused(jobs_on, make_fleet):
    """Case B39: not only the head must be reached."""
    hosts = make_fleet(3)
    cut = ["ip", "route", "add", "unreachable", f"{hosts['gpu3'].address}/32"]
    hosts["gpu2"].exec(cut, user="root")
    with pytest.raises(PreflightFailed, match=r"gpu2: network: it cannot reach gpu3 at .*No route"):
        jobs_on(hosts).run("print('never')")


def test_a_wrong_clock_is_a_warning(jobs_on, make_fleet):
    hosts = make_fleet(2)
    hosts["gpu2"].clock_offset(-300)
    lines = log_of(jobs_on(hosts, slots=1), program=Program("command", ("true",)))
    assert any("warning: gpu2: clock: it is -" in line and "chrony" in line for line in lines)


def test_lingering_is_switched_on_where_logind_would_break_the_job(jobs_on, make_fleet):
    hosts = make_fleet(1)
    systemd(hosts["gpu1"])
    assert jobs_on(hosts).run("pass").error is None
    assert hosts["gpu1"].read_file("asked").splitlines()[-1] == "--no-ask-password enable-linger"


def test_a_logind_that_breaks_nothing_is_left_alone(jobs_on, make_fleet):
    hosts = make_fleet(1)
    systemd(hosts["gpu1"], ipc="no")
    assert jobs_on(hosts).run("pass").error is None
    assert "enable-linger" not in hosts["gpu1"].read_file("asked")


def test_a_logind_that_would_break_the_job_is_refused_with_what_to_run(jobs_on, make_fleet):
    hosts = make_fleet(2)
    systemd(hosts["gpu1"], kill="yes", refused=1)
    systemd(hosts["gpu2"], refused=1)
    with pytest.raises(PreflightFailed) as caught:
        jobs_on(hosts).run("print('never')")
    told = caught.value.message.splitlines()
    assert "KillUserProcesses=yes) and empty its /dev/shm (RemoveIPC=yes)" in told[0]
    assert "KillUserProcesses" not in told[1]
    for line, name in zip(told, ("gpu1", "gpu2"), strict=True):
        assert line.startswith(f"{name}: systemd-logind would break the job: ")
        assert line.endswith("sudo loginctl enable-linger trainer")


def test_a_user_who_lingers_already_is_fine(jobs_on, make_fleet):
    hosts = make_fleet(1)
    systemd(hosts["gpu1"], refused=1)
    linger = "mount -t tmpfs lib /var/lib && mkdir -p /var/lib/systemd/linger && "
    hosts["gpu1"].exec(["sh", "-c", f"{linger} touch /var/lib/systemd/linger/trainer"], user="root")
    assert jobs_on(hosts).run("pass").error is None


def test_many_hosts_are_connected_in_one_go(tmp_path):
    agents = {
        f"gpu{n}": HostAgent(LocalTransport(Host(f"gpu{n}")), str(tmp_path / str(n)))
        for n in range(16)
    }
    addresses = dict.fromkeys(agents, "127.0.0.1") | {"gpu3": "127.0.0.2"}
    assert asyncio.run(mesh(agents, addresses)) == []


def test_a_host_that_is_cut_off_is_one_finding(tmp_path):
    agents = {
        f"gpu{n}": HostAgent(LocalTransport(Host(f"gpu{n}")), str(tmp_path / str(n)))
        for n in range(4)
    }
    addresses = dict.fromkeys(agents, "127.0.0.1") | {"gpu2": "240.0.0.1"}
    (finding,) = asyncio.run(mesh(agents, addresses))
    assert (finding.host, finding.severity) == ("gpu2", "failure")
    assert finding.why.startswith("no other host reaches it at 240.0.0.1")
