"""Ports: free ones, and who holds one."""

from __future__ import annotations

import contextlib
import os

from .errors import Refusal
from .facts import user_name
from .files import read_text
from .locks import Lock
from .network import listen
from .processes import command_of

TYPE_CHECKING = False


def free_ports(count: int) -> list[int]:
    """Return ports that nobody holds, outside the range of outgoing connections."""
    import random

    low, high = map(int, (read_text("/proc/sys/net/ipv4/ip_local_port_range") or "0 0").split())
    candidates = [port for port in range(10000, 65536) if not low <= port <= high]
    free: list[int] = []
    for port in random.sample(candidates, min(len(candidates), 40 * count)):
        with contextlib.suppress(OSError):
            if Lock.holder(f"port-{port}") is None:
                listen(port).close()
                free.append(port)
        if len(free) == count:
            break
    return free


def listener_of(port: int) -> tuple[str, int | None]:
    """Return the inode and the user of the socket that listens on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(table).splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                return cells[9], int(cells[7])
    return "", None


def socket_owner(inode: str) -> int | None:
    """Return the process that has a socket open, None if it cannot be seen."""
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == f"socket:[{inode}]":
                    return int(pid)
    return None


def port_taken(port: int) -> Refusal:
    """Return the refusal that names who holds a port."""
    inode, uid = listener_of(port)
    pid = socket_owner(inode) if inode else None
    holder = Lock.holder(f"port-{port}") or {}
    user = holder.get("user") if uid is None else user_name(uid)
    command = command_of(pid) if pid else ""
    who = f"process {pid} ({command})" if pid else f"job {holder.get('job', 'unknown')}"
    message = f"port {port} is in use by {who} of user {user}: leave the port out, or free it"
    return Refusal("port_taken", message, port=port, pid=pid, user=user, command=command)
