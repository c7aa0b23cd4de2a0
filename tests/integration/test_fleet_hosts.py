"""The test hosts themselves: that they are what other tests take them for."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import paramiko
import pytest

from tests.fleet import FaultUnavailable, Fleet, Host, record, wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeFleet

WRITABLE = ["/tmp", "/dev/shm", "/var/tmp", "/run/lock", "/home/trainer"]


def over_ssh(fleet: Fleet, host: Host, command: str) -> str:
    done = subprocess.run([*fleet.ssh(host), command], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def greeted(host: Host) -> socket.socket:
    """Connect to a host's sshd and read its greeting."""
    connection = socket.create_connection((host.address, host.port), timeout=20)
    assert connection.recv(64).startswith(b"SSH-2.0-")
    return connection


def commands(host: Host) -> list[str]:
    return [process.command for process in host.processes()]


@pytest.fixture
def session(make_fleet: MakeFleet) -> Iterator[tuple[Host, subprocess.Popen[str]]]:
    """A login that has left a process behind and waits for its input."""
    fleet = make_fleet(1)
    command = "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo started; cat"
    with subprocess.Popen(
        [*fleet.ssh(fleet.hosts[0]), command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "started\n"
        yield fleet.hosts[0], client
        client.kill()


def test_ssh_reaches_each_host_under_its_own_name_and_key(fleet: Fleet) -> None:
    assert [over_ssh(fleet, host, "hostname; id -un") for host in fleet.hosts] == [
        "gpu1\ntrainer",
        "gpu2\ntrainer",
    ]


@pytest.mark.parametrize("path", ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"])
def test_hosts_have_an_identity_of_their_own(fleet: Fleet, path: str) -> None:
    with open(path) as machines:  # noqa: PTH123
        assert len({machines.read(), *(host.read_file(path) for host in fleet.hosts)}) == 3


@pytest.mark.parametrize("folder", WRITABLE)
def test_what_one_host_writes_no_other_sees(fleet: Fleet, folder: str) -> None:
    gpu1, gpu2 = fleet.hosts
    gpu1.write_file(f"{folder}/mine", "text")
    assert gpu2.exec(["test", "-e", f"{folder}/mine"], check=False).returncode == 1


@pytest.mark.parametrize("folder", ["/opt", "/usr/local", "/var/lib"])
def test_not_even_root_can_change_what_hosts_share(fleet: Fleet, folder: str) -> None:
    done = fleet.hosts[0].exec(["touch", f"{folder}/mine"], user="root", check=False)
    assert "Read-only file system" in done.stderr


def test_hosts_do_not_see_the_checkout(fleet: Fleet, pytestconfig: pytest.Config) -> None:
    checkout = str(pytestconfig.rootpath / "pyproject.toml")
    assert fleet.hosts[0].exec(["test", "-e", checkout], user="root", check=False).returncode == 1


def test_hosts_reach_each_other_but_cannot_log_in(fleet: Fleet) -> None:
    login = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "gpu2", "true"]
    assert "Permission denied" in fleet.hosts[0].exec(login, check=False).stderr


def test_orphans_are_reaped(fleet: Fleet) -> None:
    host = fleet.hosts[0]
    host.exec(["sh", "-c", "(sleep 0 & echo $! > orphan) & wait"])
    orphan = host.read_file("orphan").strip()
    gone = ["test", "!", "-e", f"/proc/{orphan}"]
    wait.until(lambda: host.exec(gone, check=False).returncode == 0, "the orphan stays")


def test_two_fleets_stand_at_once(make_fleet: MakeFleet) -> None:
    first, second = make_fleet(1), make_fleet(1)
    assert first.hosts[0].address != second.hosts[0].address
    assert [over_ssh(fleet, fleet.hosts[0], "hostname") for fleet in (first, second)] == [
        "gpu1"
    ] * 2


KILLED_RUN = """
import os
from tests.fleet import Fleet

print(Fleet.up(1).id, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_run_is_cleaned_up_by_the_next(make_fleet: MakeFleet) -> None:
    run = [sys.executable, "-c", KILLED_RUN]
    killed = subprocess.run(run, capture_output=True, text=True, check=False)
    left = Fleet.load(killed.stdout.strip())
    assert left.hosts[0].processes()
    make_fleet(1)
    assert left.hosts[0].processes() == []
    assert left.id not in [entry.id for entry in record.standing()]


def test_a_power_cut_is_silent_and_the_host_comes_back_as_another_boot(
    make_fleet: MakeFleet,
) -> None:
    host = make_fleet(1).hosts[0]
    host.write_file("kept", "text")
    before = host.read_file("/proc/sys/kernel/random/boot_id")
    with greeted(host) as connection:
        host.power_cut()
        assert host.processes() == []
        host.power_on()
        connection.sendall(b"SSH-2.0-test\r\n")
        with pytest.raises(ConnectionResetError):  # had the host said good-bye, this were an end
            connection.recv(1)
    assert host.read_file("kept") == "text"
    assert host.read_file("/proc/sys/kernel/random/boot_id") != before


def test_a_cut_cable_breaks_no_connection(make_fleet: MakeFleet) -> None:
    host = make_fleet(1).hosts[0]
    with greeted(host) as connection:
        host.cut_cable()
        with pytest.raises(OSError):  # noqa: PT011 - no route, or no answer in time
            socket.create_connection((host.address, host.port), timeout=0.5)
        host.plug_cable()
        connection.sendall(b"SSH-2.0-test\r\n")
        assert connection.recv(64)


def test_dropped_connections_leave_what_they_had_started(
    session: tuple[Host, subprocess.Popen[str]],
) -> None:
    host, client = session
    host.drop_connections()
    assert client.wait() == 255
    assert "sleep 1000" in commands(host)


def test_a_frozen_session_is_silent_until_it_thaws(
    session: tuple[Host, subprocess.Popen[str]],
) -> None:
    host, client = session
    host.freeze()
    with pytest.raises(subprocess.TimeoutExpired):
        client.communicate("line\n", timeout=0.3)
    host.thaw()
    assert client.communicate()[0] == "line\n"


def test_sshd_restarts_at_another_port_without_ending_sessions(
    session: tuple[Host, subprocess.Popen[str]],
) -> None:
    host, client = session
    host.restart_sshd(Port="2222")
    greeted(host).close()
    assert host.port == 2222
    assert client.communicate("line\n")[0] == "line\n"


def test_a_wrong_clock_is_seen_by_what_ssh_starts(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(2)
    fleet["gpu2"].clock_offset(-86400)
    right, wrong = (int(over_ssh(fleet, host, "date +%s")) for host in fleet.hosts)
    assert right - wrong > 86000


def test_a_password_logs_in(make_fleet: MakeFleet) -> None:
    host = make_fleet(1).hosts[0]
    host.set_password("open sesame")
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(
            host.address,
            host.port,
            host.user,
            "open sesame",
            allow_agent=False,
            look_for_keys=False,
        )


def test_a_greeting_in_bashrc_breaks_sftp(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(1)
    fleet.hosts[0].noisy_bashrc()
    assert over_ssh(fleet, fleet.hosts[0], "hostname") == "welcome\ngpu1"
    sftp = ["sftp", *fleet.ssh(fleet.hosts[0])[1:]]
    sftp[sftp.index("-p")] = "-P"
    done = subprocess.run(sftp, capture_output=True, text=True, check=False)
    assert "Received message too long" in done.stderr


def test_a_host_may_know_no_name_but_its_own(make_fleet: MakeFleet) -> None:
    host = make_fleet(2).hosts[0]
    host.forget_names()
    assert host.exec(["getent", "hosts", "gpu1"]).stdout.split() == ["127.0.1.1", "gpu1"]
    assert host.exec(["getent", "hosts", "gpu2"], check=False).returncode == 2


def test_hosts_take_further_interfaces(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(2, interfaces={"gpu1": "eno1"})
    for number, host in enumerate(fleet.hosts, 1):
        host.add_interface("docker0", "172.17.0.1/16")
        host.add_nic("eth1", f"10.78.0.{number}/24")
    probe = "import socket; print(socket.create_connection(('10.78.0.2', 22)).recv(4))"
    assert fleet["gpu1"].exec(["python3", "-c", probe]).stdout == "b'SSH-'\n"
    assert sorted(fleet["gpu1"].exec(["ls", "/sys/class/net"]).stdout.split()) == [
        "docker0",
        "eno1",
        "eth1",
        "lo",
    ]


def test_without_namespaces_hosts_are_sshd_on_loopback() -> None:
    with Fleet.up(2, kind="loopback") as fleet:
        homes = {over_ssh(fleet, host, "echo $HOME") for host in fleet.hosts}
        assert homes == {str(host.folder / "home") for host in fleet.hosts}
        with pytest.raises(FaultUnavailable, match="gpu1: a power cut needs"):
            fleet.hosts[0].power_cut()
    assert [host.processes() for host in fleet.hosts] == [[], []]
