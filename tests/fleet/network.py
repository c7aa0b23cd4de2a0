"""A switch in a network namespace of its own, with a cable to this machine and one to each host.

In this machine's own network, firewall rules made for Docker would filter what crosses the switch;
a new namespace starts without any rule.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.fleet.record import HostRecord, Record

NETWORKS = ipaddress.ip_network("10.77.0.0/16")
BRIDGE = "bridge"


def ip(*arguments: str, within: str | None = None) -> str:
    """Run iproute2's `ip`, in a network namespace if one is named."""
    argv = ["ip", *(["-n", within] if within else []), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def free_network(taken: Iterable[str]) -> str:
    """Return a /24 below 10.77.0.0/16 that no recorded fleet and no route of this machine uses."""
    used = [ipaddress.ip_network(network) for network in [*taken, *_routes()]]
    for network in NETWORKS.subnets(new_prefix=24):
        if not any(network.overlaps(other) for other in used):
            return str(network)
    raise RuntimeError(
        f"every /24 of {NETWORKS} is in use: end fleets with `python -m tests.fleet down --all`"
    )


def _routes() -> list[str]:
    routes: list[dict[str, Any]] = json.loads(
        ip("-json", "-4", "route", "show", "table", "all") or "[]"
    )
    targets = (route["dst"] for route in routes if route.get("type") in (None, "unicast"))
    return [target for target in targets if target != "default"]


def address(network: str, number: int) -> str:
    """Return the n-th address of a network."""
    return str(ipaddress.ip_network(network)[number])


def switch(fleet: Record) -> str:
    """Return the name of the switch's namespace."""
    return f"dt-{fleet.id}"


def host_space(fleet: Record, name: str) -> str:
    """Return the name of a host's network namespace."""
    return f"dt-{fleet.id}-{name}"


def path(namespace: str) -> Path:
    """Return the file that stands for a named network namespace."""
    return Path("/run/netns") / namespace


def lay(fleet: Record) -> None:
    """Make the switch and plug this machine into it, as the network's address .254."""
    here = f"dt{fleet.id}"
    ip("netns", "add", switch(fleet))
    ip("link", "add", BRIDGE, "type", "bridge", within=switch(fleet))
    ip("link", "set", BRIDGE, "up", within=switch(fleet))
    ip("link", "add", here, "type", "veth", "peer", "name", "here", "netns", switch(fleet))
    ip("link", "set", "here", "master", BRIDGE, "up", within=switch(fleet))
    ip("address", "add", f"{address(fleet.network, 254)}/24", "dev", here)
    ip("link", "set", here, "up")


def connect(fleet: Record, host: HostRecord) -> None:
    """Make a host's network namespace and plug it into the switch."""
    space = host_space(fleet, host.name)
    ip("netns", "add", space)
    ip("link", "set", "lo", "up", within=space)
    plug_in(fleet, host, host.interface, f"{host.address}/24")


def plug_in(fleet: Record, host: HostRecord, interface: str, cidr: str) -> None:
    """Give a host a network card with a cable to the switch."""
    space, port = host_space(fleet, host.name), _port(host, interface)
    hardware = ":".join(f"{byte:02x}" for byte in (2, 0, *ipaddress.ip_interface(cidr).ip.packed))
    end = ["name", port, "netns", switch(fleet)]
    # Kept over a reboot, or the neighbours would look for the old hardware address.
    ip("link", "add", interface, "address", hardware, "netns", space, "type", "veth", "peer", *end)
    ip("link", "set", port, "master", BRIDGE, "up", within=switch(fleet))
    ip("address", "add", cidr, "dev", interface, within=space)
    ip("link", "set", interface, "up", within=space)


def add_bridge(fleet: Record, host: HostRecord, interface: str, cidr: str) -> None:
    """Give a host an interface with nothing behind it."""
    space = host_space(fleet, host.name)
    ip("link", "add", interface, "type", "bridge", within=space)
    ip("address", "add", cidr, "dev", interface, within=space)
    ip("link", "set", interface, "up", within=space)


def set_cable(fleet: Record, host: HostRecord, *, plugged: bool) -> None:
    """Plug or pull a host's first cable, at the switch: the host keeps its address."""
    state = "up" if plugged else "down"
    ip("link", "set", _port(host, host.interface), state, within=switch(fleet))


def unplug(fleet: Record, host: HostRecord) -> None:
    """Take away all cables of a host, and the cards with them."""
    links = json.loads(ip("-json", "link", "show", "type", "veth", within=switch(fleet)))
    for port in (link["ifname"] for link in links):
        if port.startswith(f"{host.name}-"):
            ip("link", "delete", port, within=switch(fleet))


def remove(namespace: str) -> None:
    """Remove a network namespace, with the cards in it; nothing is said to anybody."""
    if path(namespace).exists():
        ip("netns", "delete", namespace)


def _port(host: HostRecord, interface: str) -> str:
    return f"{host.name}-{interface}"[:15]
