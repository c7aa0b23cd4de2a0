"""Host keys are checked, under the host's own name and port, by both libraries alike."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import HostUnreachable, PlanError
from distributed_training.transport.keys import fingerprint, known_keys
from tests.fleet.sshd import make_key
from tests.ways import logins, way

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fleet import Fleet
    from tests.fleet.host import Host
    from tests.transport.conftest import SetUp


@pytest.fixture
def host(fleet: Fleet) -> Host:
    return fleet["gpu1"]


@pytest.fixture
def other_key(tmp_path: Path) -> str:
    """The public key of no host."""
    return make_key(tmp_path / "other")


@pytest.fixture
def greet(library: str, fleet: Fleet, host: Host) -> Callable[..., str]:
    """Log in with a line of the host list and further extras; return what came of it."""

    def log_in(line: str = "", **extra: Any) -> str:
        connection = fleet.connection(**extra)
        port = f" port={host.port}" if host.port != 22 else ""
        connection["extra"]["hosts"] = f"gpu1 ssh={host.address}{port} {line}"
        return asyncio.run(said(library, connection))

    return log_in


async def said(library: str, connection: dict[str, Any]) -> str:
    async with way(library, connection) as transport:
        return (await transport.run("echo in")).stdout.decode().strip()


def name_of(host: Host) -> str:
    return host.address if host.port == 22 else f"[{host.address}]:{host.port}"


@pytest.mark.parametrize("port", ["22", "2222"])
def test_the_right_pinned_key_lets_in(
    greet: Callable[..., str], host: Host, sshd: SetUp, port: str
) -> None:
    """B12: known_hosts would need [host]:2222."""
    sshd(host, Port=port)
    assert greet(host_key=host.host_key) == "in"
    assert greet(f'host_key="{host.host_key}"') == "in"


@pytest.mark.parametrize("port", ["22", "2222"])
@pytest.mark.parametrize("where", ["connection", "host list"])
def test_a_wrong_pinned_key_keeps_out(
    greet: Callable[..., str], host: Host, other_key: str, sshd: SetUp, port: str, where: str
) -> None:
    """B12: before anything is sent, naming host and port."""
    sshd(host, Port=port)
    before = logins(host)
    line, key = ("", other_key) if where == "connection" else (other_key, host.host_key)
    with pytest.raises(HostUnreachable) as caught:
        greet(line and f'host_key="{line}"', host_key=key)
    message = caught.value.message
    assert f"{host.address}:{port}" in message
    assert f"shows host key {fingerprint(host.host_key)}, but host_key of the {where}" in message
    assert fingerprint(other_key) in message
    assert logins(host) == before


def test_an_unknown_key_keeps_out_and_tells_what_to_do(
    greet: Callable[..., str], host: Host, home: Path
) -> None:
    with pytest.raises(HostUnreachable) as caught:
        greet()
    message = caught.value.message
    assert f"its host key {fingerprint(host.host_key)} is unknown" in message
    assert f"{home}/.ssh/known_hosts, which does not exist, has none of {host.address}" in message
    assert "ssh-keygen -lf" in message


def test_a_key_of_known_hosts_lets_in(greet: Callable[..., str], host: Host, home: Path) -> None:
    line = f"{name_of(host)} {host.host_key}\n"
    (home / ".ssh/known_hosts").write_text(f"# comment\nother ssh-rsa AAAA\n{line}")
    assert greet() == "in"
    (home / "elsewhere").write_text(line)
    assert greet(known_hosts=str(home / "elsewhere")) == "in"
    assert greet(known_hosts=line.strip()) == "in"


def test_a_hashed_name_in_known_hosts_lets_in(
    greet: Callable[..., str], host: Host, home: Path
) -> None:
    file = home / ".ssh/known_hosts"
    file.write_text(f"{host.address} {host.host_key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert host.address not in file.read_text()
    assert greet() == "in"


def test_a_key_of_another_port_does_not_count(
    greet: Callable[..., str], host: Host, sshd: SetUp
) -> None:
    """B12: asyncssh by itself would take the key of port 22."""
    known = f"{host.address} {host.host_key}"
    assert greet(known_hosts=known) == "in"
    sshd(host, Port="2222")
    with pytest.raises(HostUnreachable, match="is unknown"):
        greet(known_hosts=known)
    assert greet(known_hosts=f"{name_of(host)} {host.host_key}") == "in"


def test_a_revoked_key_keeps_out(greet: Callable[..., str], host: Host) -> None:
    line = f"{host.address} {host.host_key}"
    with pytest.raises(HostUnreachable, match="is revoked in known_hosts"):
        greet(known_hosts=f"{line}\n@revoked * {host.host_key}")


def test_a_key_of_another_kind_is_found_among_several(
    greet: Callable[..., str], host: Host, tmp_path: Path
) -> None:
    """The host has no RSA key, so its ed25519 key must be asked for."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(tmp_path / "rsa")], check=True
    )
    rsa = (tmp_path / "rsa.pub").read_text().strip()
    known = f"{host.address} {rsa}\n{host.address} {host.host_key}"
    assert greet(known_hosts=known) == "in"


@pytest.mark.parametrize("extra", [{"no_host_key_check": True}, {"known_hosts": "none"}])
def test_an_unknown_key_lets_in_where_nobody_checks(
    greet: Callable[..., str], extra: dict[str, Any]
) -> None:
    assert greet(**extra) == "in"


def test_a_changed_key_keeps_out_even_where_unknown_ones_let_in(
    greet: Callable[..., str], host: Host, other_key: str
) -> None:
    """As SSHHook has it: `allow_host_key_change` is what lets changed ones in."""
    known = f"{host.address} {other_key}"
    with pytest.raises(HostUnreachable, match="it shows host key"):
        greet(known_hosts=known, no_host_key_check=True)
    assert greet(known_hosts=known, allow_host_key_change=True) == "in"


def test_a_pinned_host_is_checked_where_others_are_not(
    greet: Callable[..., str], other_key: str
) -> None:
    with pytest.raises(HostUnreachable, match="host_key of the host list"):
        greet(f'host_key="{other_key}"', no_host_key_check=True)


def test_known_hosts_that_cannot_be_read_are_an_error() -> None:
    with pytest.raises(PlanError, match=r"known_hosts /none/here: No such file"):
        known_keys("/none/here", "gpu1", 22)
