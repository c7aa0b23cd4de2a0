"""Log in with paramiko."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

import paramiko  # type: ignore[import-untyped]
from paramiko.ssh_exception import IncompatiblePeer  # type: ignore[import-untyped]

from distributed_training.transport.connections import Refusal, dropped, network_refusal
from distributed_training.transport.login import (
    ALGORITHMS,
    CREDENTIALS,
    LOGIN_TIMEOUT,
    NOTHING_TO_SHOW,
    Login,
)
from distributed_training.transport.sockets import reach

if TYPE_CHECKING:
    import asyncssh

    from distributed_training.transport.keys import HostKeys

# What goes wrong is raised too; its threads would log it once more, with tracebacks.
LOG = "distributed_training.paramiko"
logging.getLogger(LOG).setLevel(logging.CRITICAL)

KEY_TYPES = {
    "ssh-rsa": paramiko.RSAKey,
    "ssh-ed25519": paramiko.Ed25519Key,
    "ecdsa-sha2-nistp256": paramiko.ECDSAKey,
    "ecdsa-sha2-nistp384": paramiko.ECDSAKey,
    "ecdsa-sha2-nistp521": paramiko.ECDSAKey,
}


def connect(login: Login) -> paramiko.SSHClient:
    """Return a connection; Refusal tells why there is none."""
    line = reach(login)
    client = paramiko.SSHClient()
    client.set_log_channel(LOG)
    client.set_missing_host_key_policy(_Policy(login.host_keys))
    try:
        client.connect(sock=line.socket, **_options(login))
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        line.socket.close()
        raise line.blamed(refusal(error)) from error
    except BaseException:
        client.close()
        line.socket.close()
        raise
    if transport := client.get_transport():
        transport.set_keepalive(login.keepalive)
    return client


def _options(login: Login) -> dict[str, Any]:
    return {
        "hostname": login.host,
        "port": login.port,
        "username": login.user,
        "password": login.password,
        "pkey": _paramiko_key(login.key, login.certificate),
        "passphrase": login.passphrase,
        "look_for_keys": login.look_for_keys,
        "compress": login.compress,
        "timeout": LOGIN_TIMEOUT,
        "auth_timeout": LOGIN_TIMEOUT,
        "banner_timeout": login.timeout,
        "disabled_algorithms": _disabled(login),
        "transport_factory": lambda *args, **options: _transport(login, *args, **options),
    }


def _transport(login: Login, *args: Any, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(*args, **options)
    if login.ciphers:
        security = transport.get_security_options()
        known = preferred("ciphers")
        security.ciphers = tuple(name for name in login.ciphers if name in known)
    return transport


def preferred(kind: str) -> tuple[str, ...]:
    """Return the algorithms of a kind that paramiko uses, best first."""
    names: tuple[str, ...] = getattr(paramiko.Transport, f"_preferred_{kind}")
    return names


def _disabled(login: Login) -> dict[str, list[str]]:
    """Return what is disabled, and the types of host key that this host would not show."""
    disabled = {kind: list(names) for kind, names in login.disabled_algorithms.items()}
    if wanted := login.host_keys.algorithms:
        others = [name for name in preferred("keys") if name not in wanted]
        disabled["keys"] = disabled.get("keys", []) + others
    return disabled


class _Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Ask our own record of host keys; paramiko's is left empty, so this is always asked."""

    def __init__(self, host_keys: HostKeys) -> None:
        self._host_keys = host_keys

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: Any) -> None:
        shown = f"{key.get_name()} {key.get_base64()}"
        if refusal := self._host_keys.refusal(shown, hostname):
            raise refusal


def _paramiko_key(key: asyncssh.SSHKey | None, certificate: str | None) -> paramiko.PKey | None:
    if key is None:
        return None
    text = key.export_private_key("openssh").decode()
    loaded = KEY_TYPES[key.get_algorithm()].from_private_key(io.StringIO(text))
    if certificate:
        loaded.load_certificate(certificate)
    return loaded


def refusal(error: Exception) -> Refusal:
    """Return paramiko's reason as ours."""
    if isinstance(error, paramiko.BadAuthenticationType):
        allowed = ", ".join(error.allowed_types)
        return Refusal(f"it refuses the login, and takes only {allowed}", CREDENTIALS)
    if isinstance(error, paramiko.AuthenticationException):
        return Refusal(f"it refuses the login ({_sentence(error)})", CREDENTIALS)
    if isinstance(error, IncompatiblePeer):
        return Refusal(_sentence(error), ALGORITHMS)
    if isinstance(error, OSError):
        return network_refusal(error)
    if "No authentication methods" in str(error):
        return Refusal("there is nothing to log in with", NOTHING_TO_SHOW)
    # What is left breaks off before login: no banner, no answer to the key exchange.
    return dropped(_sentence(error))


def _sentence(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
