"""How one host of a fleet is logged in to: the connection as Airflow's SSHHook reads it."""

from __future__ import annotations

import json
from binascii import Error as BinasciiError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow.providers.ssh.hooks.ssh import SSHHook
from airflow.sdk.exceptions import AirflowException
from paramiko import SSHException  # type: ignore[import-untyped]

from distributed_training.errors import PlanError
from distributed_training.provider import FIELDS
from distributed_training.transport.keys import (
    HostKeys,
    certificate_of,
    key_file,
    known_keys,
    private_key,
)
from distributed_training.transport.login import Login
from distributed_training.transport.sockets import proxy_command

if TYPE_CHECKING:
    import asyncssh

    from distributed_training.fleet import Host

CONN_TIMEOUT = 10
SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class Settings:
    """What a connection says, without the extras that are empty; its repr shows no secret."""

    conn_id: str
    login: str | None
    password: str | None = field(repr=False)
    host: str | None
    port: int | None
    extras: dict[str, Any] = field(repr=False)


def login(settings: Settings, host: Host) -> Login:
    """Return how a host is logged in to; PlanError tells what is wrong with the connection."""
    try:
        if host.host_key:  # a wrong key of the connection is wrong, although this one goes before
            _Parsed(settings, replace(host, host_key=None))
        return _login(_Parsed(settings, host), settings, host)
    except (AirflowException, SSHException, ValueError, TypeError) as error:
        what = "host_key: " if isinstance(error, SSHException | BinasciiError) else ""
        message = f"connection {settings.conn_id!r}, for host {host.name}: {what}{error}"
        raise PlanError(message, host=host.name) from None


def _login(parsed: _Parsed, settings: Settings, host: Host) -> Login:
    # SSHHook has filled in both.
    port, user = parsed.port or SSH_PORT, parsed.username or ""
    proxy = parsed.host_proxy_cmd
    return Login(
        host=parsed.remote_host,
        port=port,
        user=user,
        host_keys=_host_keys(parsed, settings, host, port),
        password=parsed.password.strip() if parsed.password else None,
        key=_key(parsed, settings),
        certificate=certificate_of(parsed.key_file) if parsed.key_file else None,
        passphrase=_passphrase(settings),
        look_for_keys=parsed.look_for_keys,
        proxy=proxy and proxy_command(proxy, parsed.remote_host, port, user),
        timeout=parsed.conn_timeout or CONN_TIMEOUT,
        keepalive=parsed.keepalive_interval,
        compress=parsed.compress,
        ciphers=_ciphers(parsed.ciphers),
        disabled_algorithms=_disabled(parsed.disabled_algorithms),
    )


class _Parsed(SSHHook):
    """Airflow's SSHHook for one host, as a reader: what an extra means there, it means here."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self._given = _Given(settings, host)
        super().__init__(
            ssh_conn_id=settings.conn_id,
            remote_host=host.ssh_host,
            username=host.user,
            port=host.port,
            host_proxy_cmd=settings.extras.get("host_proxy_cmd"),
        )

    def get_connection(self, conn_id: str) -> Any:  # type: ignore[override]
        """Return what is known already: SSHHook would fetch the connection once for each host."""
        return self._given


class _Given:
    """A connection as SSHHook is to see it for one host."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self.login, self.password = settings.login, settings.password
        self.host, self.port = settings.host, settings.port
        self.extra = "{}"  # not None: it has extras
        self.extra_dejson = dict(settings.extras)
        # Read by us, in more forms than paramiko knows, and once for both libraries.
        self.extra_dejson.pop("private_key", None)
        if _checks_nothing(settings):
            self.extra_dejson["no_host_key_check"] = True
        if host.host_key:
            self.extra_dejson |= {"host_key": host.host_key, "no_host_key_check": False}


def _ciphers(given: Any) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given or ()
    return tuple(name.strip() for name in names)


def _disabled(given: Any) -> dict[str, list[str]]:
    try:
        disabled: dict[str, list[str]] = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ValueError(f"disabled_algorithms is not JSON: {error}") from None
    return disabled or {}


def _passphrase(settings: Settings) -> str | None:
    extras = settings.extras
    return extras.get("private_key_passphrase") or extras.get("passphrase")


def _key(parsed: SSHHook, settings: Settings) -> asyncssh.SSHKey | None:
    text, passphrase = settings.extras.get("private_key"), _passphrase(settings)
    if text and settings.extras.get("key_file"):
        raise ValueError("private_key and key_file are both given; give one")
    if text:
        return private_key(text, passphrase, f"private_key of connection {settings.conn_id!r}")
    if parsed.key_file:
        return key_file(parsed.key_file, passphrase or parsed.password)
    return None


def _host_keys(parsed: SSHHook, settings: Settings, host: Host, port: int) -> HostKeys:
    # Read where a pinned key goes before, too: what is wrong there must not wait for other hosts.
    known = _known_hosts(parsed.remote_host, settings, port)
    if parsed.host_key is not None:
        pinned = f"{parsed.host_key.get_name()} {parsed.host_key.get_base64()}"
        source = "the host list" if host.host_key else "the connection"
        return HostKeys((pinned,), source=f"host_key of {source}")
    if parsed.allow_host_key_change:
        return HostKeys(None)
    known = known or known_keys(None, parsed.remote_host, port)
    if parsed.no_host_key_check and not known.trusted:
        return replace(known, trusted=None)
    return known


def _known_hosts(host: str, settings: Settings, port: int) -> HostKeys | None:
    """Return what the connection itself tells of a host."""
    known_hosts = settings.extras.get("known_hosts")
    if not known_hosts or _checks_nothing(settings):
        return None
    try:
        return known_keys(known_hosts, host, port)
    except PlanError as error:
        raise PlanError(f"connection {settings.conn_id!r}: {error.message}") from None


def _checks_nothing(settings: Settings) -> bool:
    """Tell whether known_hosts is the word "none", as SSHHookAsync has it."""
    return str(settings.extras.get("known_hosts", "")).strip().lower() == "none"


def settings_of(connection: Any, extras: dict[str, Any]) -> Settings:
    """Return what a connection says; a form's empty fields say nothing.

    :raises PlanError: an extra cannot be right
    """
    given = {key: value for key, value in extras.items() if value not in (None, "")}
    for name in FIELDS.keys() & given.keys():
        if wrong := _wrong(given[name], **FIELDS[name]["schema"]):
            raise PlanError(f"connection {connection.conn_id!r}: {name}{wrong}")
    return Settings(
        connection.conn_id,
        connection.login,
        connection.password,
        connection.host,
        connection.port,
        given,
    )


def _wrong(value: Any, type: list[str], minimum: int = 0, **_: Any) -> str | None:
    """Return what is wrong with an extra by the schema of its field; URIs make text of all."""
    kind, text = type[0], str(value).strip()
    if kind == "string" and not isinstance(value, str | list):  # hosts may be a list
        return f" is of type {value.__class__.__name__}, not text"
    if kind == "integer" and not (text.isdecimal() and int(text) >= minimum):
        return f"={value!r} is not a whole number of at least {minimum}"
    if kind == "boolean" and text.lower() not in ("true", "false"):
        return f"={value!r} is neither true nor false"
    return None
