"""The hook of a fleet: its hosts, and ways to them for the worker and for the triggerer."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from distributed_training.errors import PlanError, TrainingError
from distributed_training.fleet import Fleet, Host, named_in, parse_hosts, read_hostfile

# paramiko and asyncssh are imported where a connection is made: DAG files import this module.
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from distributed_training.hooks.login import Settings
    from distributed_training.run.agents import HostAgent
    from distributed_training.run.preflight import Preflight
    from distributed_training.transport.base import Transport
    from distributed_training.transport.connections import SshTransport
    from distributed_training.transport.login import Login
    from distributed_training.transport.sharing import Exchange

# Connections of this process that several jobs share, for each event loop.
_exchanges: WeakKeyDictionary[asyncio.AbstractEventLoop, Exchange] = WeakKeyDictionary()


class FleetHook(BaseHook):
    """The hosts behind a connection of type ``gpu_fleet``.

    Login, password and the extras of Airflow's ``ssh`` connections mean what they mean there.

    :param fleet_conn_id: the connection
    :param hostfile: a file on this machine that lists the hosts, in place of the connection
    :param hosts: which of them, in DeepSpeed's grammar: ``gpu1@gpu2:0,2``; None: all
    """

    conn_name_attr = "fleet_conn_id"
    default_conn_name = "gpu_fleet_default"
    conn_type = "gpu_fleet"
    hook_name = "GPU fleet"

    def __init__(
        self,
        fleet_conn_id: str = default_conn_name,
        *,
        hostfile: str | None = None,
        hosts: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.fleet_conn_id = fleet_conn_id
        self.hostfile = hostfile
        self.hosts = hosts

    @classmethod
    async def load(
        cls,
        fleet_conn_id: str = default_conn_name,
        *,
        hostfile: str | None = None,
        hosts: str | Sequence[str] | None = None,
    ) -> Self:
        """Return a hook that has its connection, as a trigger must not fetch one by itself."""
        from distributed_training.hooks.login import settings_of

        hook = cls(fleet_conn_id, hostfile=hostfile, hosts=hosts)
        try:
            connection = await cls.aget_connection(fleet_conn_id)
            hook.settings = settings_of(connection, await connection.aextra_dejson())
        except AirflowNotFoundException:
            hook.settings = hook._unset()
        return hook

    @cached_property
    def settings(self) -> Settings:
        """What the connection says."""
        from distributed_training.hooks.login import settings_of

        try:
            connection = self.get_connection(self.fleet_conn_id)
        except AirflowNotFoundException:
            return self._unset()
        return settings_of(connection, connection.extra_dejson)

    def _unset(self) -> Settings:
        """Return settings that say nothing: hosts of a hostfile may need no more."""
        from distributed_training.hooks.login import Settings

        if self.fleet_conn_id != self.default_conn_name:
            raise PlanError(
                f"there is no connection {self.fleet_conn_id!r}, or it cannot be read from here; "
                "define it in Airflow"
            )
        return Settings(self.fleet_conn_id, None, None, None, None, {})

    @cached_property
    def fleet(self) -> Fleet:
        """The hosts, as far as they were chosen."""
        return Fleet(self._listed(), self.fleet_conn_id).select(self.hosts)

    def _listed(self) -> tuple[Host, ...]:
        if self.hostfile:
            return read_hostfile(self.hostfile)
        listed = self.settings.extras.get("hosts") or self.settings.host
        if not listed and self.hosts:
            listed = named_in(self.hosts)
        if not listed:
            raise PlanError(
                f"connection {self.fleet_conn_id!r} lists no host, or is not defined; write them "
                "into its field 'Hosts' (extra `hosts`), one a line, as in 'gpu1 slots=8'"
            )
        return parse_hosts(listed, f"hosts of connection {self.fleet_conn_id!r}")

    @property
    def python(self) -> str | None:
        """The interpreter that ranks run in unless the task names one."""
        return self.settings.extras.get("python")

    @property
    def work_dir(self) -> str | None:
        """The folder on the hosts that holds all of ours; None: the agent's own choice."""
        return self.settings.extras.get("work_dir")

    @property
    def quarantine(self) -> float:
        """Seconds that a host is left out after a fault of its own."""
        return float(self.settings.extras.get("quarantine", 0))

    @property
    def disk_cap(self) -> float:
        """Bytes that ended jobs and sources may take on a host."""
        return float(self.settings.extras.get("disk_cap", 100)) * 1e9

    def transport(self, host: Host) -> Transport:
        """Return the way to a host for the worker, over paramiko; connects on first use."""
        return _over_paramiko(host, self._login(host))

    async def async_transport(self, host: Host) -> SshTransport[Any]:
        """Return the way to a host for the triggerer, over asyncssh where that can do it all."""
        # Encrypted keys take their time, by design.
        login = await asyncio.to_thread(self._login, host)
        from distributed_training.transport import asyncssh_login
        from distributed_training.transport.over_asyncssh import AsyncsshTransport

        if why := asyncssh_login.gap(login):
            self.log.info("Reaching %s over paramiko: %s", host.name, why)
            return _over_paramiko(host, login)
        return AsyncsshTransport(_reached(host, login), lambda: asyncssh_login.connect(login))

    def _login(self, host: Host) -> Login:
        from distributed_training.hooks.login import login

        found = login(self.settings, host)
        if found.host_keys.trusted is None:
            self.log.warning("The host key of %s is not checked: anybody may pose as it", host.name)
        return found

    @asynccontextmanager
    async def connections(self, hosts: Sequence[Host]) -> AsyncIterator[dict[str, Transport]]:
        """Yield the ways to hosts by name, over connections shared with all of this event loop."""
        exchange = _exchange()
        async with AsyncExitStack() as stack:
            found: dict[str, Transport] = {}
            for host in hosts:
                transport = await self.async_transport(host)
                borrowed = exchange.borrow(self._identity(transport.host), transport)
                found[host.name] = await stack.enter_async_context(borrowed)
            yield found

    def _identity(self, host: Host) -> str:
        """Return what tells a way from others, without the secrets that it depends on."""
        return hashlib.sha256(repr((astuple(self.settings), host)).encode()).hexdigest()

    @asynccontextmanager
    async def agents(
        self, hosts: Sequence[Host] | None = None
    ) -> AsyncIterator[dict[str, HostAgent]]:
        """Yield the agents of hosts, or of all, by name, over shared connections."""
        async with self.connections(self.fleet.hosts if hosts is None else hosts) as transports:
            yield self._agents(transports)

    @asynccontextmanager
    async def own_agents(self, hosts: Sequence[Host]) -> AsyncIterator[dict[str, HostAgent]]:
        """Yield the agents of hosts by name, over connections that end with the block."""
        transports = {host.name: self.transport(host) for host in hosts}
        try:
            yield self._agents(transports)
        finally:
            await asyncio.gather(*(transport.close() for transport in transports.values()))

    def _agents(self, transports: Mapping[str, Transport]) -> dict[str, HostAgent]:
        from distributed_training.run.agents import HostAgent

        return {name: HostAgent(transport, self.work_dir) for name, transport in transports.items()}

    async def examine(self, python: str | None = None) -> Preflight:
        """Return what a launch would find on the hosts.

        :param python: interpreter whose packages are compared; None: that of the ranks
        """
        from distributed_training.run.doctor import doctor

        async with self.agents() as agents:
            return await doctor(agents, python or self.python, self.quarantine)

    def test_connection(self) -> tuple[bool, str]:
        """Check every host as a launch would, all at once; a table, and what is wrong."""
        try:
            preflight = asyncio.run(self.examine())
        except TrainingError as error:
            return False, error.message
        names = [host.name for host in self.fleet.hosts]
        return not preflight.failures(), preflight.table(names)


def _reached(host: Host, login: Login) -> Host:
    return replace(host, user=login.user, port=login.port)


def _over_paramiko(host: Host, login: Login) -> SshTransport[Any]:
    from distributed_training.transport import paramiko_login
    from distributed_training.transport.over_paramiko import ParamikoTransport

    return ParamikoTransport(_reached(host, login), lambda: paramiko_login.connect(login))


def _exchange() -> Exchange:
    from distributed_training.transport.sharing import Exchange

    return _exchanges.setdefault(asyncio.get_running_loop(), Exchange())
