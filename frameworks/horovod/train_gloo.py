"""Fit a line with Horovod over Gloo, without any MPI: ranks meet at a server of rank 0."""

import os
import socket

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousServer
from torch.distributed import TCPStore
from train import main

SAME = ("RANK", "LOCAL_RANK")  # what torch's launchers call the same
SIZES = {"SIZE": "WORLD_SIZE", "LOCAL_SIZE": "LOCAL_WORLD_SIZE"}
CROSS = {"CROSS_RANK": "GROUP_RANK", "CROSS_SIZE": "GROUP_WORLD_SIZE"}


def meet() -> tuple[RendezvousServer | None, TCPStore]:
    """Tell Horovod who this rank is and where all meet, as ``horovodrun --gloo`` does over SSH.

    Hosts must have equally many ranks. The server, and the store that tells of its port, last as
    long as they are held.
    """
    env = os.environ
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    store = TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), size, is_master=rank == 0)
    server = None
    if rank == 0:
        server = RendezvousServer()
        port = server.start()
        hosts = [
            HostInfo(str(node), int(env["LOCAL_WORLD_SIZE"]))
            for node in range(int(env["GROUP_WORLD_SIZE"]))
        ]
        server.init(get_host_assignments(hosts, size, size))
        store.set("port", str(port))
    names = {**{name: name for name in SAME}, **SIZES, **CROSS}
    env.update({f"HOROVOD_{ours}": env[theirs] for ours, theirs in names.items()})
    env.update(
        HOROVOD_HOSTNAME=socket.gethostname(),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_RENDEZVOUS_ADDR=env["MASTER_ADDR"],
        HOROVOD_GLOO_RENDEZVOUS_PORT=store.get("port").decode(),
        HOROVOD_GLOO_IFACE=env["GLOO_SOCKET_IFNAME"],
    )
    return server, store


if __name__ == "__main__":
    held = meet()
    main()
