"""Proxy commands: working, talkative, failing, silent."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import HostUnreachable
from distributed_training.transport.sockets import proxy_command
from tests.fleet import wait
from tests.fleet.processes import with_environment
from tests.ways import way

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fleet import Fleet

RELAY = """\
import os, socket, sys, threading
os.write(2, sys.argv[3].encode())
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def give():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=give, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def relay(tmp_path: Path) -> Callable[[str], str]:
    """A proxy command that passes bytes on, as `ssh -W` does, and writes to stderr first."""
    (tmp_path / "relay.py").write_text(RELAY)
    return lambda words: f"{sys.executable} {tmp_path}/relay.py %h %p '{words}'"


async def said(library: str, connection: dict[str, Any]) -> str:
    async with way(library, connection) as transport:
        return (await transport.run("echo in")).stdout.decode().strip()


def complaint(library: str, connection: dict[str, Any]) -> str:
    with pytest.raises(HostUnreachable) as caught:
        asyncio.run(said(library, connection))
    return caught.value.message


@pytest.mark.parametrize("words", ["", "WARNING: authorised users only", "x" * 100_000])
def test_a_proxy_command_leads_to_the_host(
    library: str, fleet: Fleet, relay: Callable[[str], str], words: str
) -> None:
    """B16: from the connection, and whatever it writes to stderr."""
    connection = fleet.connection(host_proxy_cmd=relay(words))
    assert asyncio.run(said(library, connection)) == "in"


def test_a_jump_host_leads_to_the_host(library: str, fleet: Fleet, home: Path) -> None:
    """B16: `ssh -W %h:%p jump`, without a configuration file."""
    jump = fleet["gpu2"]
    (home / "known").write_text(f"{jump.address} {jump.host_key}\n")
    options = f"-i {fleet.key_file} -o UserKnownHostsFile={home}/known -o BatchMode=yes"
    command = f"ssh {options} -W %h:%p {jump.user}@{jump.address}"
    assert asyncio.run(said(library, fleet.connection(host_proxy_cmd=command))) == "in"


def test_a_failing_proxy_command_is_told_in_its_own_words(library: str, fleet: Fleet) -> None:
    """B16: within conn_timeout."""
    command = "sh -c 'echo jump: permission denied >&2; exit 1'"
    message = complaint(library, fleet.connection(host_proxy_cmd=command, conn_timeout=10))
    assert "host_proxy_cmd ended with status 1; its stderr: jump: permission denied" in message


def test_a_silent_proxy_command_is_told_and_ended(library: str, fleet: Fleet, home: Path) -> None:
    mark = f"PROXY_TEST={home}"
    command = f"env {mark} sleep 1000"
    message = complaint(library, fleet.connection(host_proxy_cmd=command, conn_timeout=1))
    assert "no SSH server speaks there in time" in message
    wait.until(lambda: not with_environment(mark), "the proxy command still runs")


def test_a_proxy_command_that_is_not_there_is_told(library: str, fleet: Fleet) -> None:
    connection = fleet.connection(host_proxy_cmd="nosuchprogram %h %p")
    assert "host_proxy_cmd cannot be run: " in complaint(library, connection)


def test_a_proxy_command_from_ssh_config_is_used(
    library: str, fleet: Fleet, home: Path, relay: Callable[[str], str]
) -> None:
    """As SSHHook does."""
    host = fleet["gpu1"]
    text = f"Host {host.address}\n  ProxyCommand {relay('hello')}\n"
    (home / ".ssh/config").write_text(text.replace("%h %p", f"{host.address} %p"))
    assert asyncio.run(said(library, fleet.connection())) == "in"


def test_tokens_are_replaced_as_in_ssh_config() -> None:
    template = "ssh -l %r -W %h:%p 100%% %n"
    assert proxy_command(template, "gpu1", 2222, "alice") == "ssh -l alice -W gpu1:2222 100% %n"
