"""Hosts and fleets: host lists as users write or paste them, and selections from them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_training.errors import PlanError
from distributed_training.hostlist import (
    ADDRESS,
    IPV6,
    USER,
    Entry,
    commas,
    host_entries,
    host_values,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Host:
    """One machine as a host list describes it; None stands for what the list leaves open.

    :param name: as written, without the user; what logs and selections call it
    :param slots: room for how many ranks; None: one for each GPU found, else 1
    :param address: how other hosts reach it; None: what the host itself answers
    :param ssh: how SSH reaches it; None: by its name
    :param port: SSH port; None: the connection's, else 22
    :param user: SSH user; None: the connection's
    :param gpus: indexes or UUIDs of the GPUs that may be used; (): all
    :param labels: free words
    :param host_key: public key of this host alone, ``ssh-ed25519 AAAA…``
    :param places: slot indexes that a selection chose; (): all
    """

    name: str
    slots: int | None = None
    address: str | None = None
    ssh: str | None = None
    port: int | None = None
    user: str | None = None
    gpus: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    host_key: str | None = None
    places: tuple[int, ...] = ()

    @property
    def ssh_host(self) -> str:
        """Return the name or address that SSH connects to."""
        return self.ssh or self.name

    @property
    def declared_slots(self) -> int | None:
        """Return the number of slots, if the list alone tells it."""
        return self.slots or len(self.gpus) or None

    def chosen_slots(self, count: int) -> tuple[int, ...]:
        """Return the slot indexes that may be used of this host, which has ``count`` slots."""
        if self.places and max(self.places) >= count:
            raise PlanError(_no_such_slot(self.name, self.places, count), host=self.name)
        return self.places or tuple(range(count))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The hosts behind one Airflow connection."""

    hosts: tuple[Host, ...]
    conn_id: str | None = None

    def select(self, selection: str | Sequence[str] | None) -> Fleet:
        """Return the chosen hosts, in the order chosen; None chooses all.

        The grammar is DeepSpeed's: ``gpu1@gpu2:0,2`` is all of gpu1, and slots 0 and 2 of gpu2.
        """
        if selection is None:
            return self
        try:
            chosen = [self._chosen(part) for part in _parts(selection)]
            _expect_different([host.name for host in chosen])
        except ValueError as error:
            raise PlanError(f"hosts={selection!r}: {error}") from None
        return replace(self, hosts=tuple(chosen))

    def _chosen(self, part: str) -> Host:
        match = _PART.fullmatch(part)
        if not match:
            raise ValueError(
                f"{part!r} is not a selection; write NAME or NAME:SLOT,SLOT, and join several "
                "with @, as in gpu1@gpu2:0,2"
            )
        host = self._named(match["name"].strip("[]"))
        places = tuple(int(index) for index in (match["slots"] or "").split(",") if index)
        return _narrowed(host, places) if places else host

    def _named(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        fleet = f" of connection {self.conn_id!r}" if self.conn_id else ""
        raise ValueError(
            f"the fleet{fleet} has no host {name!r}, only {commas(h.name for h in self.hosts)}; "
            "use the names of the host list, without user and port"
        )


def parse_hosts(
    hosts: str | Sequence[Mapping[str, object] | str], source: str = "hosts"
) -> tuple[Host, ...]:
    """Return the hosts of a list: lines of text, JSON text, or a list of objects and lines.

    :param source: what error messages call the list
    """
    found: dict[str, tuple[Host, str]] = {}
    for entry in host_entries(hosts, source):
        for host in _hosts(entry):
            if earlier := found.get(host.name.lower()):
                raise PlanError(
                    f"{entry.where}: host {host.name!r} is already given in {earlier[1]}; "
                    "give it once, with all of its slots"
                )
            found[host.name.lower()] = (host, entry.where)
    if not found:
        raise PlanError(f"{source}: no host is given; write one a line, as in 'gpu1 slots=8'")
    return tuple(host for host, _ in found.values())


def read_hostfile(path: str | Path) -> tuple[Host, ...]:
    """Return the hosts of a local file; without that file nothing runs, least of all here."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"cannot read the hostfile {str(path)!r}, looked for at {file.absolute()}: {error}. "
            "It must lie on the machine that runs the task; give its absolute path"
        ) from None
    return parse_hosts(text, source=str(file))


def format_hosts(hosts: Iterable[Host]) -> str:
    """Return the host list that reads as these hosts; selected slots are no part of it."""
    return "".join(_line(host) + "\n" for host in hosts)


def _line(host: Host) -> str:
    user = f"{host.user}@" if host.user else ""
    name = f"[{host.name}]" if ":" in host.name else host.name
    pairs = {
        "slots": host.slots,
        "address": host.address,
        "ssh": host.ssh,
        "port": host.port,
        "gpus": ",".join(host.gpus),
        "labels": ",".join(host.labels),
        "host_key": f'"{host.host_key}"' if host.host_key else None,
    }
    return " ".join([user + name, *(f"{key}={value}" for key, value in pairs.items() if value)])


# --- selections


def _narrowed(host: Host, places: tuple[int, ...]) -> Host:
    _expect_different([f"slot {index} of {host.name}" for index in places])
    if host.places and not set(places) <= set(host.places):
        raise ValueError(
            f"an earlier selection left only slots {commas(host.places)} of {host.name}"
        )
    if host.declared_slots is not None and max(places) >= host.declared_slots:
        raise ValueError(_no_such_slot(host.name, places, host.declared_slots))
    return replace(host, places=places)


def _expect_different(names: list[str]) -> None:
    if not names:
        raise ValueError("no host is selected; leave it out to use all of them")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is selected twice")


def _no_such_slot(name: str, places: tuple[int, ...], count: int) -> str:
    return (
        f"host {name} has no slot {max(places)}: slots are indexes below the count, and it has "
        f"{count}, so 0 to {count - 1}. To use certain GPUs, name them in the host list: "
        f"{name} slots={len(places)} gpus={','.join(map(str, places))}"
    )


# --- from entries to hosts

_HEAD = re.compile(rf"(?:(?P<user>{USER})@)?(?P<name>{ADDRESS}|\[{IPV6}\])(?::(?P<count>.*))?")


def named_in(selection: str | Sequence[str]) -> list[str]:
    """Return the names in a selection as a host list, for a fleet that lists no host itself."""
    names = [match["name"] for match in map(_PART.fullmatch, _parts(selection)) if match]
    return [f"[{name}]" if ":" in name and name[0] != "[" else name for name in names]


def _parts(selection: str | Sequence[str]) -> list[str]:
    items = [selection] if isinstance(selection, str) else selection
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise PlanError(f"hosts={selection!r} is neither text nor a list of names")
    return [part.strip() for item in items for part in item.split("@")]


_PART = re.compile(rf"(?P<name>{ADDRESS}|\[{IPV6}\])(?::(?P<slots>[0-9]+(?:,[0-9]+)*))?")


def _hosts(entry: Entry) -> list[Host]:
    """Return the hosts of one entry; a line "a:4,b:4" has several."""
    heads = entry.head.split(",")
    try:
        if len(heads) > 1 and entry.pairs:
            raise ValueError(f"{entry.pairs[0][0]}= after several hosts; write one host a line")
        return [_host(head, entry.pairs) for head in heads]
    except ValueError as error:
        raise PlanError(f"{entry.where}: {error}") from None


def _host(head: str, pairs: list[tuple[str, Any]]) -> Host:
    values = host_values(pairs)
    match = _HEAD.fullmatch(head)
    if not match:
        raise ValueError(_bad_name(head))
    if match["count"] is not None:
        _merge(values, "slots", whole(match["count"]))
    if match["user"]:
        _merge(values, "user", match["user"])
    most = values.pop("max_slots", None)
    host = Host(name=match["name"].strip("[]"), **values)
    _check_counts(host, most)
    return host


def _merge(values: dict[str, Any], key: str, value: object) -> None:
    if values.setdefault(key, value) != value:
        raise ValueError(f"{key} is given twice, as {value} and as {values[key]}")


def _check_counts(host: Host, most: int | None) -> None:
    if host.gpus and host.slots and host.slots > len(host.gpus):
        raise ValueError(f"slots={host.slots} is more than the {len(host.gpus)} GPUs of gpus=")
    if most is not None and host.slots is None:
        raise ValueError(f"max_slots={most} alone does not tell how many ranks; write slots= too")
    if most is not None and host.slots is not None and host.slots > most:
        raise ValueError(f"slots={host.slots} is more than max_slots={most}")


def _bad_name(head: str) -> str:
    if not head:
        return "a host's name is missing"
    if head.count(":") > 1 and "[" not in head:
        return f"{head!r} is no host name; write an IPv6 address in brackets, as in [fe80::1]"
    return f"{head!r} is no host name; write [user@]name or [user@]name:slots"
