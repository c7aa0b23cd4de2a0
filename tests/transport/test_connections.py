"""Connections to a host: shared, replaced when lost, refused with a reason."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import ConnectionLost, HostUnreachable
from tests.ways import logins, way

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fleet import Fleet
    from tests.transport.conftest import SetUp

    MakeFleet = Callable[[int], Fleet]


def run(library: str, connection: dict[str, Any], command: str, name: str | None = None) -> bytes:
    async def main() -> bytes:
        async with way(library, connection, name) as transport:
            return (await transport.run(command)).stdout

    return asyncio.run(main())


def unreachable(library: str, connection: dict[str, Any]) -> str:
    with pytest.raises(HostUnreachable) as caught:
        run(library, connection, "true")
    assert caught.value.host == "gpu1"
    return caught.value.message


def listed(connection: dict[str, Any], hosts: str) -> dict[str, Any]:
    return {**connection, "extra": {**connection["extra"], "hosts": hosts}}


def test_channels_share_one_connection(library: str, fleet: Fleet) -> None:
    """B10: no reconnect per poll."""
    before = logins(fleet["gpu1"])

    async def main() -> None:
        async with way(library, fleet.connection()) as transport:
            await asyncio.gather(*(transport.run("true") for _ in range(8)))
            for _ in range(5):
                await transport.run("true")

    asyncio.run(main())
    assert logins(fleet["gpu1"]) == before + 1


def test_a_full_connection_gets_a_companion(library: str, fleet: Fleet) -> None:
    """MaxSessions is 10 by default."""
    before = logins(fleet["gpu1"])

    async def main() -> None:
        async with way(library, fleet.connection()) as transport:
            channels = await asyncio.gather(*(transport.open("echo on; cat") for _ in range(25)))
            assert [await channel.read() for channel in channels] == [b"on\n"] * 25
            for channel in channels:
                await channel.close()

    asyncio.run(main())
    assert logins(fleet["gpu1"]) == before + 3


def test_a_server_that_opens_no_session_is_named(library: str, fleet: Fleet, sshd: SetUp) -> None:
    sshd(fleet["gpu1"], MaxSessions="0")
    assert "it opens no session" in unreachable(library, fleet.connection())


def test_a_busy_server_is_asked_again(library: str, fleet: Fleet, sshd: SetUp) -> None:
    """B10: twelve at once, and sshd drops whoever comes third."""
    sshd(fleet["gpu1"], MaxStartups="2:100:2")
    before = logins(fleet["gpu1"])

    async def main() -> list[bytes]:
        async with AsyncExitStack() as stack:
            ways = [
                await stack.enter_async_context(way(library, fleet.connection())) for _ in range(12)
            ]
            done = await asyncio.gather(*(transport.run("echo in") for transport in ways))
            return [each.stdout for each in done]

    assert asyncio.run(main()) == [b"in\n"] * 12
    assert logins(fleet["gpu1"]) == before + 12


def test_a_broken_connection_is_told_and_replaced(library: str, make_fleet: MakeFleet) -> None:
    fleet = make_fleet(1)

    async def main() -> None:
        async with way(library, fleet.connection()) as transport:
            channel = await transport.open("echo on; exec cat")
            assert await channel.read() == b"on\n"
            await asyncio.to_thread(fleet["gpu1"].drop_connections)
            with pytest.raises(ConnectionLost, match="what runs there may well go on"):
                await channel.read()
            with pytest.raises(ConnectionLost):
                await channel.wait()
            with pytest.raises(ConnectionLost):
                await channel.write(b"x")
            await channel.close()
            assert (await transport.run("echo again")).stdout == b"again\n"

    asyncio.run(main())


def test_a_closed_transport_connects_anew(library: str, fleet: Fleet) -> None:
    async def main() -> None:
        async with way(library, fleet.connection()) as transport:
            await transport.run("true")
            await transport.close()
            assert (await transport.run("echo again")).stdout == b"again\n"

    asyncio.run(main())


def test_a_closed_port_is_told_with_what_to_check(library: str, fleet: Fleet) -> None:
    host = fleet["gpu1"]
    hosts = f"gpu1 ssh={host.address} port=2299"
    message = unreachable(library, listed(fleet.connection(), hosts))
    assert f"gpu1 ({host.user}@{host.address}:2299)" in message
    assert "nobody listens on that port; check that sshd runs there, and port=" in message


def test_an_unknown_name_is_told_as_such(library: str, fleet: Fleet) -> None:
    connection = listed(fleet.connection(), "gpu1 ssh=nosuchhost.invalid")
    assert "nosuchhost.invalid:22): its name has no address" in unreachable(library, connection)


def test_a_silent_port_is_given_up_within_conn_timeout(library: str, fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"gpu1 ssh=127.0.0.1 port={silent.getsockname()[1]}"
        connection = listed(fleet.connection(conn_timeout=1), hosts)
        assert "no SSH server speaks there in time" in unreachable(library, connection)


def test_a_host_without_power_is_given_up_within_conn_timeout(
    library: str, make_fleet: MakeFleet
) -> None:
    fleet = make_fleet(1)
    fleet["gpu1"].power_cut()
    assert "no answer in time" in unreachable(library, fleet.connection(conn_timeout=1))


def test_a_port_that_speaks_no_ssh_is_told_as_such(library: str, fleet: Fleet) -> None:
    async def main() -> str:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example.com ESMTP\r\n")
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        hosts = f"gpu1 ssh=127.0.0.1 port={server.sockets[0].getsockname()[1]}"
        async with server, way(library, listed(fleet.connection(), hosts)) as transport:
            with pytest.raises(HostUnreachable) as caught:
                await transport.run("true")
        return caught.value.message

    assert "220 mail.example.com" in asyncio.run(main())


def test_a_cancelled_connect_leaves_nothing(library: str, fleet: Fleet) -> None:
    before = logins(fleet["gpu1"])

    async def main() -> None:
        async with way(library, fleet.connection()) as transport:
            opening = asyncio.create_task(transport.open("true"))
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait({opening})
            assert opening.cancelled()
            assert (await transport.run("echo in")).stdout == b"in\n"

    asyncio.run(main())
    assert logins(fleet["gpu1"]) <= before + 2


def test_a_noisy_login_script_leaves_bytes_as_they_are(library: str, make_fleet: MakeFleet) -> None:
    """B18: its words come first, and all of ours after them."""
    fleet = make_fleet(1)
    fleet["gpu1"].noisy_bashrc("welcome")
    data = bytes(range(256))

    async def main() -> bytes:
        async with way(library, fleet.connection()) as transport:
            return (await transport.run("cat", data)).stdout

    assert asyncio.run(main()) == b"welcome\n" + data


def test_each_host_has_its_own_user_and_port(library: str, make_fleet: MakeFleet) -> None:
    """B68, B69."""
    fleet = make_fleet(2)
    first, second = fleet["gpu1"], fleet["gpu2"]
    first.restart_sshd(Port="2222")
    second.restart_sshd(Port="2223", PermitRootLogin="yes")
    second.authorize(fleet.key_file.with_suffix(".pub").read_text(), user="root")
    hosts = fleet.hosts_text().replace("gpu2 ", "root@gpu2 ")
    connection = listed(fleet.connection(), hosts)
    command = "whoami; echo $SSH_CONNECTION | cut -d' ' -f4"
    assert run(library, connection, command, "gpu1").split() == [first.user.encode(), b"2222"]
    assert run(library, connection, command, "gpu2").split() == [b"root", b"2223"]
