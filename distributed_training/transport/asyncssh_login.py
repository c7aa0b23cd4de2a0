"""Log in with asyncssh, on the terms that paramiko would have."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncssh
from asyncssh import encryption, kex, mac, public_key
from asyncssh.saslprep import SASLPrepError, saslprep

from distributed_training.transport.connections import Refusal, dropped, network_refusal
from distributed_training.transport.keys import default_keys, known_name, public_text
from distributed_training.transport.login import (
    ALGORITHMS,
    CREDENTIALS,
    LOGIN_TIMEOUT,
    NOTHING_TO_SHOW,
    Login,
)
from distributed_training.transport.paramiko_login import preferred
from distributed_training.transport.sockets import reach_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# paramiko's name of a kind of algorithm: asyncssh's option, and what it knows of that kind.
KINDS: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "ciphers": ("encryption_algs", encryption.get_encryption_algs),
    "macs": ("mac_algs", mac.get_mac_algs),
    "kex": ("kex_algs", kex.get_kex_algs),
    "keys": ("server_host_key_algs", public_key.get_public_key_algs),
    "pubkeys": ("signature_algs", public_key.get_public_key_algs),
}


def gap(login: Login) -> str | None:
    """Return what asyncssh cannot do as paramiko does, or None if it can do it all."""
    if _prepared(login.user) != login.user:
        return "asyncssh would change the user's name"
    empty = [kind for kind, (option, _) in KINDS.items() if not _algorithms(login)[option]]
    return f"asyncssh knows none of the {', '.join(empty)} that are left" if empty else None


def _prepared(user: str) -> str | None:
    try:
        return saslprep(user)
    except SASLPrepError:
        return None


async def connect(login: Login) -> asyncssh.SSHClientConnection:
    """Return a connection; Refusal tells why there is none."""
    line = await reach_async(login)
    client = _Client(login)
    options = _options(login)
    try:
        return await asyncssh.connect(sock=line.socket, client_factory=lambda: client, **options)
    except (asyncssh.Error, OSError) as error:
        line.socket.close()
        why = client.refused or refusal(error, anything_shown=client.keys_shown)
        raise await asyncio.to_thread(line.blamed, why) from error
    except BaseException:
        line.socket.close()
        raise


def _options(login: Login) -> dict[str, Any]:
    return {
        "host": login.host,
        "port": login.port,
        "username": login.user,
        "password": login.password,
        # Explicit keys first; _Client has more. None keeps asyncssh from looking by itself.
        "client_keys": [(login.key, login.certificate)] if login.key else None,
        "agent_path": None,
        "preferred_auth": "publickey,password,keyboard-interactive",
        # No key is known beforehand, so that _Client is asked about each.
        "known_hosts": None if login.host_keys.trusted is None else ([], [], []),
        "compression_algs": ["zlib@openssh.com", "zlib", "none"] if login.compress else ["none"],
        "keepalive_interval": login.keepalive,
        "connect_timeout": LOGIN_TIMEOUT,
        "login_timeout": LOGIN_TIMEOUT,
        # What SSHHook takes from ~/.ssh/config is in `login`; the rest it does not look at.
        "config": None,
        "gss_host": None,
        "x509_trusted_certs": None,
        **_algorithms(login),
    }


def _algorithms(login: Login) -> dict[str, list[str]]:
    """Return what paramiko would use, so that a host that takes one library takes the other."""
    return {option: _chosen(login, kind, known()) for kind, (option, known) in KINDS.items()}


def _chosen(login: Login, kind: str, known: list[bytes]) -> list[str]:
    names: Sequence[str] = preferred(kind)
    if kind == "ciphers" and login.ciphers:
        names = login.ciphers
    if kind == "keys" and login.host_keys.algorithms:
        names = login.host_keys.algorithms
    disabled = login.disabled_algorithms.get(kind, [])
    return [name for name in names if name.encode() in known and name not in disabled]


class _Client(asyncssh.SSHClient):
    """Answers what asyncssh asks while it logs in, as paramiko would."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self.refused: Refusal | None = None
        self.keys_shown = login.key is not None or login.password is not None
        self._agent: asyncssh.SSHAgentClient | None = None
        self._sources = [self._agent_keys, self._default_keys]

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        target = known_name(self._login.host, self._login.port)
        self.refused = self._login.host_keys.refusal(public_text(key), target)
        return self.refused is None

    async def public_key_auth_requested(self) -> Any:
        """Return the next keys to show; None ends that."""
        while self._sources:
            if keys := await self._sources.pop(0)():
                self.keys_shown = True
                return keys
        return None

    async def _agent_keys(self) -> list[Any]:
        path = os.environ.get("SSH_AUTH_SOCK")
        with suppress(OSError, ValueError):
            self._agent = await asyncssh.connect_agent(path) if path else None
            return list(await self._agent.get_keys()) if self._agent else []
        return []

    async def _default_keys(self) -> list[Any]:
        if not self._login.look_for_keys:
            return []
        return await asyncio.to_thread(default_keys, self._login.passphrase)

    def kbdint_auth_requested(self) -> str | None:
        return "" if self._login.password is not None else None

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer one question, whatever it is, with the password."""
        if len(prompts) > 1 or self._login.password is None:
            return None
        return [self._login.password] if prompts else []

    def connection_lost(self, exc: Exception | None) -> None:
        if self._agent:
            self._agent.close()


def refusal(error: Exception, *, anything_shown: bool = True) -> Refusal:
    """Return asyncssh's reason as ours."""
    if isinstance(error, asyncssh.PermissionDenied):
        if anything_shown:
            return Refusal(f"it refuses the login ({error})", CREDENTIALS)
        return Refusal("there is nothing to log in with", NOTHING_TO_SHOW)
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return Refusal(str(error), ALGORITHMS)
    if isinstance(error, OSError):
        return network_refusal(error)
    # What is left breaks off before login: no answer to the key exchange.
    return dropped(str(error) or type(error).__name__)
