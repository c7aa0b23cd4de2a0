"""All that it takes to log in to one host, whichever library does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh

    from distributed_training.transport.keys import HostKeys


@dataclass(frozen=True, slots=True)
class Login:
    """Where to, as whom, proved how; its repr shows no secret.

    :param host: name or address that SSH connects to
    :param password: of the user
    :param key: private key to show first
    :param certificate: path of the certificate that belongs to ``key``
    :param passphrase: of the keys in ~/.ssh
    :param look_for_keys: show the keys in ~/.ssh too
    :param host_keys: what the host may show
    :param proxy: command whose stdin and stdout lead to the host; tokens are replaced
    :param timeout: seconds for the network connection, and for the server's first word
    :param keepalive: seconds between signs of life
    :param compress: compress what is sent
    :param ciphers: which may be used, best first; (): the library's
    :param disabled_algorithms: which may not, by paramiko's kinds: ciphers, macs, keys, …
    """

    host: str
    port: int
    user: str
    host_keys: HostKeys
    password: str | None = field(default=None, repr=False)
    key: asyncssh.SSHKey | None = field(default=None, repr=False)
    certificate: str | None = None
    passphrase: str | None = field(default=None, repr=False)
    look_for_keys: bool = True
    proxy: str | None = None
    timeout: float = 10.0
    keepalive: int = 30
    compress: bool = True
    ciphers: tuple[str, ...] = ()
    disabled_algorithms: dict[str, list[str]] = field(default_factory=dict)


# Seconds for the key exchange and the proof of who we are, on a connection that stands: a host
# under load is slow there, not dead.
LOGIN_TIMEOUT = 60.0

# What to do about a refusal.
ALGORITHMS = "check ciphers and disabled_algorithms in the connection"
CREDENTIALS = "check the login and the password or key of the connection, and user= of the host"
NOTHING_TO_SHOW = "set password, private_key or key_file in the connection"
