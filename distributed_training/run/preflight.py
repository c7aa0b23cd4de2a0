"""The preflight: what hosts told of themselves, as findings and as a table."""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distributed_training.errors import PlanError
from distributed_training.run.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from distributed_training.plan import Offer

GIB = 1 << 30
MIN_DISK = 1 * GIB  # journals and logs of a long job alone take some hundred MiB
MIN_SHM = 1 * GIB  # workers of a DataLoader hand batches over through it; so does NCCL
MAX_CLOCK_OFFSET = 3.0  # seconds


@dataclass(slots=True)
class Preflight:
    """What is known of each host, by name, and what is wrong."""

    offers: dict[str, Offer] = field(default_factory=dict)
    versions: dict[str, Mapping[str, str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, offers: Iterable[Offer], *, infiniband: bool = False) -> Preflight:
        """Begin with what offers tell.

        :param infiniband: a job needs it between its hosts
        """
        known = {offer.host.name: offer for offer in offers}
        looks = (of_offer, of_infiniband) if infiniband else (of_offer,)
        found = [each for offer in known.values() for look in looks for each in look(offer)]
        return cls(known, findings=found)

    def failures(self, host: str | None = None) -> list[Finding]:
        """Return what refuses a launch, on one host or on all."""
        return [
            each
            for each in self.findings
            if each.severity == "failure" and host in (None, each.host)
        ]

    def add_versions(self, versions: Mapping[str, Mapping[str, str]]) -> None:
        """Take what the ranks' interpreters have, by host."""
        self.versions.update(versions)
        self.findings += of_versions(versions)

    def summary(self) -> Iterator[str]:
        """Yield a line for each host, and one for each finding."""
        yield f"Preflight of {len(self.offers)} host{'s' if len(self.offers) > 1 else ''}:"
        for name, offer in self.offers.items():
            cells = self.cells(offer)
            words = [cells["frameworks"], cells["GPUs"], f"{cells['disk free']} free"]
            words = [f"Python {cells['Python']}", *words, cells["network"]]
            yield f"  {name}: {self.state(name)}, {', '.join(word for word in words if word)}"
        for finding in self.findings:
            yield f"  {finding.severity}: {finding}"

    def table(self, hosts: Sequence[str]) -> str:
        """Return all that is known of hosts as a table, and what is wrong below it."""
        known = {name: self.cells(self.offers[name]) for name in hosts if name in self.offers}
        columns = next(iter(known.values()), {})
        rows = [["host", "state", *columns]]
        for name in hosts:
            cells = known.get(name, {})
            rows.append([name, self.state(name), *(cells.get(each) or "-" for each in columns)])
        found = [f"{each.severity}: {each}" for each in self.findings]
        return "\n".join([*aligned(rows), *([""] if found else []), *found])

    def state(self, host: str) -> str:
        """Return the worst that was found on a host."""
        found = {each.severity for each in self.findings if each.host == host}
        return "failure" if "failure" in found else "warning" if found else "ok"

    def cells(self, offer: Offer) -> dict[str, str]:
        """Return what a table tells of a host, by column."""
        versions = dict(self.versions.get(offer.host.name, {}))
        facts = offer.facts
        gpus = [str(gpu["name"]) for gpu in offer.gpus]
        busy = f" ({len(offer.busy)} slots in use)" if offer.busy else ""
        address = f"{offer.interface or 'no interface for'} {_address(offer) or 'no address'}"
        return {
            "Python": versions.pop("python", offer.python),
            "frameworks": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "GPUs": (f"{len(gpus)} x {gpus[0]}" if gpus else f"no GPU, {offer.cpus} CPUs") + busy,
            "disk free": _size(offer.disk_free),
            "clock": f"{offer.clock_offset:+.1f} s",
            "memlock": _size(facts.get("memlock")),
            "/dev/shm free": _size(facts.get("shm_free", 0)),
            "network": address,
        }


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def of_offer(offer: Offer) -> Iterator[Finding]:
    """Yield what is wrong with a host by what it offers."""
    name, facts = offer.host.name, offer.facts
    if offer.disk_free < MIN_DISK:
        yield Finding(
            name,
            "disk",
            "failure",
            f"{_size(offer.disk_free)} are free for {offer.root}, {_size(MIN_DISK)} are needed",
            "free space there, or set work_dir in the fleet to a folder on another disk",
        )
    if abs(offer.clock_offset) > MAX_CLOCK_OFFSET + offer.round_trip:
        yield Finding(
            name,
            "clock",
            "warning",
            f"it is {offer.clock_offset:+.0f} s off Airflow's clock",
            "let a time service such as chrony or systemd-timesyncd set it",
        )
    if facts.get("shm_free", MIN_SHM) < MIN_SHM:
        yield Finding(
            name,
            "/dev/shm",
            "warning",
            f"{_size(facts['shm_free'])} are free, and data loaders and NCCL want {_size(MIN_SHM)}",
            "mount -o remount,size=50% /dev/shm; in a container, run it with --shm-size",
        )
    if facts.get("infiniband") and facts.get("memlock") is not None:
        yield _memlock(offer, "warning")
    yield from _of_hardware(offer)


def of_infiniband(offer: Offer) -> Iterator[Finding]:
    """Yield why the ranks of a job could not use InfiniBand on a host."""
    name, found = offer.host.name, offer.facts.get("infiniband") or {}
    if not found.get("files"):
        why = "there is no /dev/infiniband/uverbs0: no adapter, or its driver is not loaded"
        do = "load it (`modprobe ib_uverbs`); a container needs --device=/dev/infiniband"
        yield Finding(name, "InfiniBand", "failure", why, do)
        return
    ports = found["ports"]
    if "ACTIVE" not in ports.values():
        told = ", ".join(f"{port} is {state}" for port, state in ports.items()) or "there is none"
        do = "run `ibstat` there, and see to the cable, the switch and the subnet manager"
        yield Finding(name, "InfiniBand", "failure", f"no port is active: {told}", do)
    if found["closed"]:
        why = f"{offer.user or 'the user'} may not open {', '.join(found['closed'])}"
        do = 'let all read and write it (udev: MODE="0666"), or put the user into its group'
        yield Finding(name, "InfiniBand", "failure", why, do)
    if offer.facts.get("memlock") is not None:
        yield _memlock(offer, "failure")


def _memlock(offer: Offer, severity: Severity) -> Finding:
    return Finding(
        offer.host.name,
        "memlock",
        severity,
        f"only {_size(offer.facts['memlock'])} may be locked, and InfiniBand needs more",
        "set `* - memlock unlimited` in /etc/security/limits.conf (LimitMEMLOCK=infinity of sshd's "
        "service where it has no PAM), and log in anew",
    )


def _of_hardware(offer: Offer) -> Iterator[Finding]:
    name = offer.host.name
    if offer.facts.get("gpu_devices") and not offer.gpus:
        yield Finding(
            name,
            "GPUs",
            "failure",
            f"it has {offer.facts['gpu_devices']} GPUs, but nvidia-smi lists none",
            "run nvidia-smi there; a driver that was updated needs a restart of the host",
        )
    address = _address(offer)
    if address and _is_number(address) and address not in offer.addresses:
        yield Finding(
            name,
            "network",
            "warning",
            f"none of its interfaces has the address {address}",
            "give an address= that it has, unless that one is translated to it",
        )


def of_versions(versions: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Return where Python or a framework differs from what most hosts have."""
    told = {host: found for host, found in versions.items() if found}
    names = dict.fromkeys(name for found in told.values() for name in found)
    return [finding for name in names for finding in _odd_ones(name, told)]


def _odd_ones(name: str, versions: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    usual = Counter(found.get(name) for found in versions.values()).most_common(1)[0][0]
    model = next(host for host, found in versions.items() if found.get(name) == usual)
    for host, found in versions.items():
        own = found.get(name)
        if own != usual:
            yield Finding(
                host,
                name,
                _weight(name, own, usual),
                f"it has {own or 'none'}, and {model} has {usual or 'none'}",
                "install the same on all hosts, or leave this one out with hosts=",
            )


def _weight(name: str, own: str | None, usual: str | None) -> Severity:
    """Ranks of different versions do not understand each other; a patch of Python is no matter."""
    if name == "python" and own and usual:
        return "failure" if own.split(".")[:2] != usual.split(".")[:2] else "warning"
    return "failure" if name == "torch" or (own and usual) else "warning"


def _address(offer: Offer) -> str | None:
    try:
        return offer.address
    except PlanError:
        return None


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _size(size: float | None) -> str:
    if size is None:
        return "unlimited"
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
