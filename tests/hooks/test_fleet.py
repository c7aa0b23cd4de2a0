"""The hook: from a connection to hosts, ways to them, and a report on each."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import PlanError
from distributed_training.fleet import Host
from distributed_training.hooks.fleet import FleetHook
from distributed_training.transport.over_asyncssh import AsyncsshTransport
from distributed_training.transport.over_paramiko import ParamikoTransport
from tests.ways import hook_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fleet import Fleet

CONNECTION = {
    "conn_type": "gpu_fleet",
    "login": "trainer",
    "password": "hunter2",
    "port": 2200,
    "extra": {"hosts": "gpu1 slots=2\nalice@gpu2 slots=4 port=2222", "known_hosts": "none"},
}
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nSZVmTpPXuw6xMYGf+oLuZlMEB6nFRp3GGFNxBhhX"
# What Airflow's form stores when it is saved as it opens.
EMPTY_FORM = {
    "private_key": "",
    "private_key_passphrase": None,
    "key_file": "",
    "host_key": "",
    "known_hosts": None,
    "no_host_key_check": False,
    "allow_host_key_change": False,
    "look_for_keys": True,
    "compress": True,
    "host_proxy_cmd": "",
    "conn_timeout": None,
    "python": "",
    "work_dir": None,
}


def with_extra(**extra: Any) -> dict[str, Any]:
    return {**CONNECTION, "extra": {**CONNECTION["extra"], **extra}}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(json.dumps(CONNECTION), id="JSON"),
        pytest.param(json.dumps({**CONNECTION, "extra": json.dumps(CONNECTION["extra"])}), id="2"),
        pytest.param(
            "gpu-fleet://trainer:hunter2@:2200/?known_hosts=none"
            "&hosts=gpu1%20slots%3D2%0Aalice%40gpu2%20slots%3D4%20port%3D2222",
            id="URI",
        ),
    ],
)
def test_a_connection_may_come_from_the_environment(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", value)
    fleet = (Host("gpu1", 2), Host("gpu2", 4, port=2222, user="alice"))
    assert FleetHook("gpus").fleet.hosts == fleet
    assert asyncio.run(FleetHook.load("gpus")).fleet.hosts == fleet


def test_a_selection_narrows_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps(CONNECTION))
    assert FleetHook("gpus", hosts="gpu2:0,2").fleet.hosts[0].places == (0, 2)
    loaded = asyncio.run(FleetHook.load("gpus", hosts=["gpu2"]))
    assert [host.name for host in loaded.fleet.hosts] == ["gpu2"]


def test_a_hostfile_takes_the_place_of_the_list(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("gpu7 slots=1\n")
    hook = hook_of(CONNECTION)
    hook.hostfile = str(tmp_path / "hostfile")
    assert hook.fleet.hosts == (Host("gpu7", 1),)


def test_a_hostfile_needs_no_connection(tmp_path: Path) -> None:
    """As long as the keys of the home will do; the default connection need not be defined."""
    (tmp_path / "hostfile").write_text("alice@gpu7 slots=1\n")
    hook = FleetHook(hostfile=str(tmp_path / "hostfile"))
    assert hook.transport(hook.fleet.hosts[0]).host.user == "alice"
    assert asyncio.run(FleetHook.load()).python is None


def test_a_connection_that_is_not_defined_is_named() -> None:
    with pytest.raises(PlanError, match="there is no connection 'gpuz'"):
        _ = FleetHook("gpuz").fleet
    with pytest.raises(PlanError, match="there is no connection 'gpuz'"):
        asyncio.run(FleetHook.load("gpuz"))


@pytest.mark.parametrize("host", ["gpu1", "gpu1:2,gpu2:2"])
def test_the_host_field_will_do_for_a_list(host: str) -> None:
    hook = hook_of({"conn_type": "gpu_fleet", "host": host})
    assert hook.fleet.hosts[0].name == "gpu1"


def test_a_connection_without_hosts_is_told_where_to_write_them() -> None:
    """B100."""
    with pytest.raises(PlanError, match="connection 'gpus' lists no host"):
        _ = hook_of({"conn_type": "gpu_fleet"}).fleet


@pytest.mark.parametrize("hosts", [["gpu1", "[fe80::1]:0,2"], "gpu1@[fe80::1]:0,2"])
def test_a_task_may_name_hosts_that_its_connection_does_not_list(hosts: str | list[str]) -> None:
    """Case B100."""
    hook = hook_of({"conn_type": "gpu_fleet", "login": "me"})
    hook.hosts = hosts
    assert [(host.name, host.places) for host in hook.fleet.hosts] == [
        ("gpu1", ()),
        ("fe80::1", (0, 2)),
    ]


def test_a_wrong_line_is_named_with_the_connection() -> None:
    with pytest.raises(PlanError, match="hosts of connection 'gpus', line 2"):
        _ = hook_of(with_extra(hosts="gpu1\ngpu2 lots=2")).fleet


def test_the_user_and_port_of_a_host_come_before_the_connections() -> None:
    """B68, B69."""
    hook = hook_of(CONNECTION)
    reached = [hook.transport(host).host for host in hook.fleet.hosts]
    assert [(host.user, host.port) for host in reached] == [("trainer", 2200), ("alice", 2222)]


def test_an_empty_form_says_nothing() -> None:
    hook = hook_of(with_extra(**EMPTY_FORM))
    assert (hook.python, hook.work_dir) == (None, None)
    assert hook.transport(hook.fleet.hosts[0]).host.user == "trainer"


def test_python_and_the_work_folder_are_extras() -> None:
    hook = hook_of(with_extra(python="/opt/py/bin/python", work_dir="/data/train"))
    assert (hook.python, hook.work_dir) == ("/opt/py/bin/python", "/data/train")


def test_quarantine_and_the_disk_cap_are_extras() -> None:
    hook = hook_of(with_extra(quarantine="600", disk_cap=50))
    assert (hook.quarantine, hook.disk_cap) == (600, 50e9)
    assert (hook_of(CONNECTION).quarantine, hook_of(CONNECTION).disk_cap) == (0, 100e9)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"quarantine": "long"}, "quarantine='long' is not a whole number of at least 0"),
        ({"quarantine": -1}, "quarantine=-1 is not a whole number of at least 0"),
        ({"disk_cap": "nan"}, "disk_cap='nan' is not a whole number of at least 1"),
        ({"conn_timeout": "soon"}, "conn_timeout='soon' is not a whole number of at least 1"),
        ({"python": 5}, "python is of type int, not text"),
        ({"work_dir": ["/data"], "python": {}}, "python is of type dict, not text"),
        ({"hosts": 5}, "hosts is of type int, not text"),
        ({"no_host_key_check": "maybe"}, "no_host_key_check='maybe' is neither true nor false"),
        ({"private_key": 5}, "private_key is of type int, not text"),
    ],
)
def test_an_extra_that_cannot_be_right_is_refused_by_its_name(
    extra: dict[str, Any], why: str
) -> None:
    with pytest.raises(PlanError) as caught:
        hook_of(with_extra(**extra))
    assert caught.value.message == f"connection 'gpus': {why}"


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"host_key": "ssh-dss AAAA"}, "DSA/DSS host keys are not supported"),
        ({"host_key": "ssh-rsa AAAA"}, "connection 'gpus', for host gpu1"),
        ({"host_key": "x" * 40, "no_host_key_check": True}, "connection 'gpus', for host gpu1"),
        ({"host_key": "zzz"}, "connection 'gpus', for host gpu1: host_key: "),
        ({"host_key": "zzzz"}, "connection 'gpus', for host gpu1: host_key: "),
        ({"disabled_algorithms": "{"}, "disabled_algorithms"),
        ({"known_hosts": "/nope"}, "connection 'gpus': known_hosts /nope: No such file"),
        ({"known_hosts": "garbage text"}, "connection 'gpus': known_hosts garbage text: No such"),
    ],
)
@pytest.mark.parametrize("hosts", ["gpu1", f'gpu1 host_key="{HOST_KEY}"'], ids=["", "pinned"])
def test_a_wrong_extra_is_told_with_the_connection(
    extra: dict[str, Any], why: str, hosts: str
) -> None:
    """Also where hosts have keys of their own, which go before it."""
    hook = hook_of(with_extra(hosts=hosts, **extra))
    with pytest.raises(PlanError) as caught:
        hook.transport(hook.fleet.hosts[0])
    assert why in caught.value.message
    assert "hunter2" not in caught.value.message


# --- whatever launches can be watched


async def watching(connection: dict[str, Any]) -> str:
    hook = hook_of(connection)
    transport = await hook.async_transport(hook.fleet.hosts[0])
    return type(transport).__name__


@pytest.mark.parametrize(
    "connection",
    [
        CONNECTION,
        with_extra(host_proxy_cmd="ssh -W %h:%p jump", compress=False, look_for_keys=False),
        with_extra(ciphers="3des-cbc", disabled_algorithms={"macs": ["hmac-sha2-256"]}),
        with_extra(allow_host_key_change=True, conn_timeout=3),
        {**CONNECTION, "login": "jürgen"},
    ],
)
def test_asyncssh_watches_what_it_can(connection: dict[str, Any]) -> None:
    assert asyncio.run(watching(connection)) == AsyncsshTransport.__name__


@pytest.mark.parametrize(
    "connection",
    [
        # asyncssh would log in as "fiona".
        pytest.param({**CONNECTION, "login": "ﬁona"}, id="user it would change"),
        pytest.param({**CONNECTION, "login": "a\u0221"}, id="user it refuses"),
        pytest.param(with_extra(ciphers="aes128-xyz"), id="cipher nobody knows"),
    ],
)
def test_paramiko_watches_the_rest(connection: dict[str, Any]) -> None:
    assert asyncio.run(watching(connection)) == ParamikoTransport.__name__


# --- the button "Test"


def test_a_fleet_in_order_is_reported_line_by_line(fleet: Fleet) -> None:
    ok, report = hook_of(fleet.connection()).test_connection()
    assert ok
    rows = [line.split() for line in report.splitlines()]
    assert [row[:2] for row in rows] == [["host", "state"], ["gpu1", "ok"], ["gpu2", "ok"]]
    assert all("no GPU" in line and "eth0 10." in line for line in report.splitlines()[1:])


def test_each_host_that_fails_is_reported(fleet: Fleet) -> None:
    connection = fleet.connection()
    first = connection["extra"]["hosts"].splitlines()[0]
    connection["extra"]["hosts"] = f"{first}\nlost ssh={fleet['gpu2'].address} port=2299"
    ok, report = hook_of(connection).test_connection()
    assert not ok
    rows = [line.split()[:2] for line in report.splitlines()]
    assert rows[1:3] == [["gpu1", "ok"], ["lost", "failure"]]
    assert "failure: lost: SSH: cannot reach lost" in report
    assert "nobody listens on that port" in report


def test_a_wrong_connection_is_reported() -> None:
    assert hook_of(with_extra(hosts="gpu1 lots=2")).test_connection() == (
        False,
        "hosts of connection 'gpus', line 1 ('gpu1 lots=2'): unknown key 'lots'; did you mean "
        "'slots'? known are name, slots, max_slots, address, ssh, port, user, gpus, labels, "
        "host_key",
    )


def test_dag_files_import_the_hook_without_the_ssh_libraries() -> None:
    code = (
        "import sys, distributed_training.hooks.fleet; "
        "print([name for name in ('paramiko', 'asyncssh') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
