"""The ranks of a Ray job: nodes of its cluster, and the driver, which waits for all of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from .exits import exit_of
from .network import knock
from .rank import FORWARDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .records import Json


def run(words: Sequence[str]) -> None:
    """Be a rank of a Ray job, in the Python that has Ray.

    :param words: ``node`` or ``driver``, what the launcher tells it as JSON, and the arguments of
        ``ray start``, or the program
    """
    kind, told, *command = words
    if kind == "node":
        node(json.loads(told), command)
    else:
        driver(json.loads(told), command)


def node(told: Json, arguments: list[str]) -> None:
    """Run a node of the cluster until it ends, or a signal ends it.

    :param told: ``folder``, a short path that shall lead to the node's files; ``wait_for``, the
        address of a head elsewhere; ``client_port``; ``start_timeout``
    """
    until = time.monotonic() + told["start_timeout"]
    lead(told["folder"], os.path.join(os.environ["DT_NODE_DIR"], "ray"))
    if told["client_port"] and has_client():
        # It cannot be switched off, and has the same port in every cluster unless it is told one.
        arguments = [*arguments, f"--ray-client-server-port={told['client_port']}"]
    came_up = os.path.join(told["folder"], "ray_current_cluster")  # Ray writes it last
    while True:
        if told["wait_for"]:
            await_head(told["wait_for"], until)
        code = ray_start(arguments)
        # Ray itself gives its daemons half a minute, which is little on a busy host.
        if code == 0 or os.path.exists(came_up) or time.monotonic() > until:
            sys.exit(code)


def ray_start(arguments: list[str]) -> int:
    """Run ``ray start`` to its end and return its status; a signal for us is one for it, too."""
    import subprocess

    # Workers of Ray are to import what lies beside the driver's script, on every host.
    env = {**os.environ, "PYTHONPATH": joined(os.environ.get("PYTHONPATH"), os.getcwd())}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]
    process = subprocess.Popen(command, env=env, close_fds=False)  # it inherits the slots' locks

    def forward(number: int, _: object) -> None:
        os.kill(process.pid, number)
        code, _ = exit_of(os.waitpid(process.pid, 0)[1])
        os._exit(1 if code is None else code)

    for name in FORWARDED:
        signal.signal(signal.Signals[name], forward)
    code, _ = exit_of(os.waitpid(process.pid, 0)[1])
    return 1 if code is None else code


def driver(told: Json, program: list[str]) -> None:
    """Become the program, once all nodes have joined the cluster.

    :param told: ``head``, its address; ``nodes``, the addresses of all by the names of their hosts;
        ``start_timeout``
    """
    until = time.monotonic() + told["start_timeout"]
    await_head(told["head"], until)
    await_nodes(told["nodes"], until)
    sys.stdout.flush()
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"cannot execute {program[0]}: {error.strerror}")


def lead(link: str, folder: str) -> None:
    """Let a short path lead to a folder: sockets of Ray cannot have a long one.

    Where two hosts of the job are one machine, both use the first one's.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    try:
        os.symlink(folder, link)
    except FileExistsError:
        if os.lstat(link).st_uid != os.getuid():
            sys.exit(f"{link} is in the way, and is another user's: let its owner remove it")


def joined(before: str | None, folder: str) -> str:
    """Return a path for Python that ends with a folder."""
    return os.pathsep.join(filter(None, (before, folder)))


def has_client() -> bool:
    """Tell whether Ray would start the server of its client."""
    from importlib.util import find_spec

    return find_spec("grpc") is not None


def await_head(address: Sequence[object], until: float) -> None:
    """Wait until the head listens, or end: it cannot be reached."""
    host, port = str(address[0]), int(str(address[1]))
    while True:
        try:
            return knock(host, port, max(1.0, until - time.monotonic()))
        except OSError as error:
            if time.monotonic() > until:
                why = error.strerror or error
                sys.exit(f"Ray's head has not come up at {host} port {port} in time: {why}")
        time.sleep(0.2)


def await_nodes(nodes: dict[str, str], until: float) -> None:
    """Wait until as many nodes have joined as there shall be, or end and say which have not."""
    import ray  # type: ignore[import-not-found]  # hosts have it

    while not connected(ray, until):
        time.sleep(0.5)
    while len(there := addresses(ray)) < len(nodes):
        if time.monotonic() > until:
            missing = [f"{name} ({at})" for name, at in nodes.items() if at not in there]
            sys.exit(
                f"{len(there)} of {len(nodes)} nodes have joined the Ray cluster in time "
                f"(start_timeout), and not {', '.join(missing)}: see their lines above, and what "
                "Ray wrote to ray/session_latest/logs in the job's folder there"
            )
        time.sleep(0.2)
    ray.shutdown()


def connected(ray: Any, until: float) -> bool:
    """Connect to the cluster of ``RAY_ADDRESS``, or tell that it is not up yet."""
    try:
        ray.init(log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        if time.monotonic() > until:
            sys.exit(f"Ray's head does not answer in time (start_timeout): {error}")
        return False
    return True


def addresses(ray: Any) -> list[str]:
    """Return the address of each node that has joined the cluster."""
    return [str(each["NodeManagerAddress"]) for each in ray.nodes() if each["Alive"]]
