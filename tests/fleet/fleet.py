"""A fleet of test hosts: up, down, and what a connection must know of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from tests.fleet import namespaces, network, record, sshd
from tests.fleet.loopback import LoopbackHost
from tests.fleet.namespaces import MissingPrivilege, NamespaceHost

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fleet.host import Host
    from tests.fleet.record import Record

KINDS: dict[str, type[Host]] = {"namespaces": NamespaceHost, "loopback": LoopbackHost}


class Fleet:
    """Hosts that stand together, on one network, with one key that logs in to all of them."""

    def __init__(self, entry: Record, why: str | None = None) -> None:
        self.record = entry
        self.why = why
        self.hosts: list[Host] = [KINDS[entry.kind](entry, own) for own in entry.hosts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def __getitem__(self, name: str) -> Host:
        found = next((host for host in self.hosts if host.name == name), None)
        if found is None:
            raise LookupError(
                f"no host {name!r}: there are {', '.join(host.name for host in self.hosts)}"
            )
        return found

    @classmethod
    def up(
        cls,
        number: int = 2,
        *,
        kind: str | None = None,
        keep: bool = False,
        interfaces: dict[str, str] | None = None,
    ) -> Self:
        """Make hosts gpu1, gpu2, …, and end what killed runs have left.

        :param kind: "namespaces" or "loopback"; by default the former if it can be had
        :param keep: stand until `down`; otherwise the next `up` after this process ends them
        :param interfaces: names of network cards that are not eth0, by host
        :raises MissingPrivilege: if namespaces are asked for and cannot be had
        """
        why = namespaces.missing()
        if why and kind == "namespaces":
            raise MissingPrivilege(why)
        kind = kind or ("loopback" if why else "namespaces")
        with record.registry():
            cls._sweep()
            entry = _enter(kind, keep=keep)
        _plan(entry, number, interfaces or {})
        fleet = cls(entry, why)
        try:
            fleet._rise()
        except BaseException:
            fleet.down()
            raise
        return fleet

    @classmethod
    def _sweep(cls) -> None:
        """End what killed runs have left."""
        for entry in record.standing():
            if entry.abandoned():
                cls(entry).down()

    @classmethod
    def load(cls, fleet_id: str | None = None) -> Self:
        """Find a fleet that stands; without an id, the only one that is kept, or the only one."""
        if fleet_id is not None:
            return cls(record.load(fleet_id))
        entries = record.standing()
        entries = [entry for entry in entries if entry.owner is None] or entries
        if len(entries) != 1:
            ids = ", ".join(entry.id for entry in entries) or "none"
            raise LookupError(f"name one fleet: {ids} stand here")
        return cls(entries[0])

    def down(self) -> None:
        """End all hosts and forget them; harmless if they are gone, also halfway."""
        for host in self.hosts:
            host.down()
        if self.record.kind == "namespaces":
            network.remove(network.switch(self.record))
        self.record.forget()

    @property
    def id(self) -> str:
        """What tells it from other fleets on this machine."""
        return self.record.id

    @property
    def kind(self) -> str:
        """`namespaces` or `loopback`."""
        return self.record.kind

    @property
    def key_file(self) -> Path:
        """The private key that logs in to every host."""
        return self.record.folder / "id_ed25519"

    @property
    def private_key(self) -> str:
        """The text of that key."""
        return self.key_file.read_text()

    def hosts_text(self, *, slots: int | None = None) -> str:
        """Return the host list of a connection, with each host's key pinned."""
        return "".join(f"{_host_line(host, slots)}\n" for host in self.hosts)

    def ssh(self, host: Host, *options: str) -> list[str]:
        """Return OpenSSH's client with all it needs to log in; what to run there comes after it."""
        known = self.record.folder / "known_hosts"
        known.write_text("".join(f"{other.name} {other.host_key}\n" for other in self.hosts))
        files = ["-F", "none", "-i", str(self.key_file), "-o", f"UserKnownHostsFile={known}"]
        named = ["-o", f"HostKeyAlias={host.name}", "-o", "BatchMode=yes", "-p", str(host.port)]
        return ["ssh", *files, *named, *options, f"{host.user}@{host.address}"]

    def connection(self, *, slots: int | None = None, **extra: Any) -> dict[str, Any]:
        """Return an Airflow connection to the fleet; `python` is one of many further extras."""
        extras = {"hosts": self.hosts_text(slots=slots), "key_file": str(self.key_file), **extra}
        return {"conn_type": "gpu_fleet", "login": self.hosts[0].user, "extra": extras}

    def connection_json(self, *, slots: int | None = None, **extra: Any) -> str:
        """Return the connection as a value of AIRFLOW_CONN_…."""
        return json.dumps(self.connection(slots=slots, **extra))

    def _rise(self) -> None:
        public_key = sshd.make_key(self.key_file)
        if self.record.kind == "namespaces":
            network.lay(self.record)
        for host in self.hosts:
            host.up(public_key)
        self.record.save()


def _enter(kind: str, *, keep: bool) -> Record:
    if kind == "loopback":
        return record.enter(kind, "127.0.0.0/8", keep=keep)
    taken = [entry.network for entry in record.standing() if entry.kind == kind]
    return record.enter(kind, network.free_network(taken), keep=keep)


def _plan(entry: Record, number: int, interfaces: dict[str, str]) -> None:
    for place in range(1, number + 1):
        name = f"gpu{place}"
        address = "127.0.0.1" if entry.kind == "loopback" else network.address(entry.network, place)
        own = record.HostRecord(name, place, address, interface=interfaces.get(name, "eth0"))
        entry.hosts.append(own)
    entry.save()


def _host_line(host: Host, slots: int | None) -> str:
    port = f" port={host.port}" if host.port != 22 else ""
    room = f" slots={slots}" if slots is not None else ""
    reach = f"address={host.address} ssh={host.address}{port}"
    return f'{host.name}{room} {reach} host_key="{host.host_key}"'
