"""Ciphers and other algorithms: asyncssh uses what paramiko would, so both get in or neither."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import HostUnreachable
from tests.ways import way

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fleet import Fleet
    from tests.transport.conftest import SetUp


@pytest.fixture
def log_in(library: str, fleet: Fleet) -> Callable[..., bytes]:
    """Log in with the given extras; return what came of it."""

    async def said(extra: dict[str, Any]) -> bytes:
        async with way(library, fleet.connection(**extra)) as transport:
            return (await transport.run("echo in")).stdout

    return lambda **extra: asyncio.run(said(extra))


@pytest.mark.parametrize(
    ("option", "kind", "only"),
    [
        ("Ciphers", "ciphers", "aes256-cbc"),
        ("MACs", "macs", "hmac-sha1-96"),
        ("KexAlgorithms", "kex", "ecdh-sha2-nistp521"),
    ],
)
def test_a_disabled_algorithm_is_not_used(  # asyncssh alone would not take the first two
    log_in: Callable[..., bytes], fleet: Fleet, sshd: SetUp, option: str, kind: str, only: str
) -> None:
    more = {"Ciphers": "aes256-ctr"} if option == "MACs" else {}
    sshd(fleet["gpu1"], **{option: only}, **more)
    assert log_in() == b"in\n"
    with pytest.raises(HostUnreachable, match="check ciphers and disabled_algorithms"):
        log_in(disabled_algorithms={kind: [only]})


@pytest.mark.parametrize("ciphers", [["aes128-cbc", "aes192-ctr"], "aes128-cbc, aes192-ctr"])
def test_only_the_given_ciphers_are_used(
    log_in: Callable[..., bytes], fleet: Fleet, sshd: SetUp, ciphers: Any
) -> None:
    """SSHHook sets them on a connection that stands, which is too late."""
    sshd(fleet["gpu1"], Ciphers="aes192-ctr")
    assert log_in(ciphers=ciphers) == b"in\n"
    sshd(fleet["gpu1"], Ciphers="aes256-ctr")
    with pytest.raises(HostUnreachable, match="check ciphers and disabled_algorithms"):
        log_in(ciphers=ciphers)


def test_a_disabled_signature_is_not_used(
    library: str, fleet: Fleet, sshd: SetUp, rsa_key: str
) -> None:
    """Without a word on it, paramiko tries the other one, and no further."""
    sshd(fleet["gpu1"], PubkeyAcceptedAlgorithms="rsa-sha2-256")

    async def said(**extra: Any) -> bytes:
        connection = fleet.connection(private_key=rsa_key, **extra)
        del connection["extra"]["key_file"]
        async with way(library, connection) as transport:
            return (await transport.run("echo in")).stdout

    disabled: Any = '{"pubkeys": ["rsa-sha2-512"]}'
    assert asyncio.run(said(disabled_algorithms=disabled)) == b"in\n"
    disabled = {"pubkeys": ["rsa-sha2-256"]}
    with pytest.raises(HostUnreachable, match="it refuses the login"):
        asyncio.run(said(disabled_algorithms=disabled))
