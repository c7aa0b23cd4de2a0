"""The addresses of this host, and whether others answer."""

from __future__ import annotations

import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def interfaces() -> dict[str, str]:
    """Return which interface holds each address of the host, asked of the kernel by netlink."""
    dump = struct.pack("=IHHIIB7x", 24, 22, 0x301, 1, 0, socket.AF_UNSPEC)  # RTM_GETADDR
    holders: dict[str, str] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.sendall(dump)
        while True:
            data = link.recv(1 << 17)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind in (2, 3):  # NLMSG_ERROR, NLMSG_DONE
                    return holders
                holders.update(interface_address(data[16:size]))
                data = data[(size + 3) & ~3 :]


def interface_address(message: bytes) -> Iterator[tuple[str, str]]:
    """Yield the address and the interface of one netlink answer."""
    family, index, at = message[0], struct.unpack_from("=I", message, 4)[0], 8
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind in (1, 2):  # IFA_ADDRESS, IFA_LOCAL
            address = socket.inet_ntop(family, message[at + 4 : at + size])
            yield address, socket.if_indextoname(index)
        at += (size + 3) & ~3


def listen(port: int) -> socket.socket:
    """Listen on a port of every address of the host."""
    family = socket.AF_INET6 if os.path.exists("/proc/net/if_inet6") else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        listener.bind(("", port))
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener


def knock(address: str, port: int, timeout: float) -> None:
    """Connect and leave without a trace: a reset leaves no waiting socket on either side."""
    with socket.create_connection((address, port), timeout=timeout) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
