"""A host's part in a job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time

from .errors import Refusal
from .facts import boot_id
from .files import read_json, remove_tree, umask
from .folders import root_of
from .journal import events, last_record
from .masking import hider
from .processes import Process
from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .masking import Hide
    from .records import Json


WATCHED_WITHIN = 10.0  # a watcher says something every 5 s
NEVER_STARTED = "stopped: not started"  # the end of a node whose gang did not come about
BIRTH_TIMEOUT = 60.0  # how long a new agent may take, on the slowest host, to note who it is


class Node:
    """A host's part in a job: its folder and the agents that tend it."""

    def __init__(self, root: str, job: object, attempt: object, node: object) -> None:
        for name in (job, attempt, node):
            if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", str(name)):
                raise Refusal("bad_request", f"not a name for a folder: {name!r}")
        self.key: Json = {"job": job, "attempt": attempt, "node": node}
        self.mark = f"{job}/{attempt}/{node}"
        self.root = root
        self.path = os.path.join(root, "jobs", self.mark)
        self.hide: Hide = str

    @classmethod
    def of(cls, request: Json) -> Node:
        """Return the node that a request names."""
        missing = [name for name in ("job", "attempt", "node") if request.get(name) is None]
        if missing:
            raise Refusal("bad_request", f"the request lacks {', '.join(missing)}")
        node = cls(root_of(request), request["job"], request["attempt"], request["node"])
        node.hide = hider(request.get("secrets") or ())
        return node

    @classmethod
    def of_folder(cls, folder: str) -> Node:
        """Return the node that a folder is of."""
        root, _, mark = folder.rpartition("/jobs/")
        return cls(root, *mark.split("/"))

    def at(self, *names: str) -> str:
        """Return the path of something in the node's folder."""
        return os.path.join(self.path, *names)

    @property
    def journal(self) -> str:
        """Return the path of the journal."""
        return self.at("journal.jsonl")

    def create(self) -> bool:
        """Make the node's folders, or return False if it has them."""
        with umask(0o077):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            try:
                os.mkdir(self.path)
            except FileExistsError:
                return False
            for name in ("work", "logs", "ranks"):
                os.mkdir(self.at(name))
        return True

    def remove(self) -> None:
        """Remove the node's folder; first what would tell a new prepare that the job has ended."""
        with contextlib.suppress(OSError):
            os.unlink(self.journal)
        remove_tree(self.path)

    def output(self) -> int:
        """Return a number that changes whenever a rank prints something or notes a metric."""
        total = 0
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.at("logs")):
                if entry.name.startswith("rank-"):
                    total += entry.stat().st_size + entry.stat().st_mtime_ns
            metrics = os.stat(self.at("metrics.jsonl"))
            total += metrics.st_size + metrics.st_mtime_ns
        return total

    def state(self) -> Json:
        """Return what the supervisor noted when it began."""
        return read_json(self.at("state.json"))

    def agents(self) -> list[Process]:
        """Return the supervisor and the watchdog, as far as they live."""
        if self.restarted():
            return []
        found = [Process(pid, start) for pid, start in self.state().get("agents", ())]
        return [process for process in found if process.alive()]

    def restarted(self) -> bool:
        """Tell whether the host was started anew since the node was prepared."""
        return bool(self.state().get("boot_id", boot_id()) != boot_id())

    def unborn(self) -> bool:
        """Tell whether the node's agents may be about to say who they are."""
        with contextlib.suppress(FileNotFoundError):
            age = time.time() - os.stat(self.path).st_mtime
            return age < BIRTH_TIMEOUT and not self.state()
        return False

    def ended(self) -> Json | None:
        """Return the last record of a job that has ended."""
        try:
            fd = os.open(self.journal, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            last = last_record(fd)
        finally:
            os.close(fd)
        return last if last.get("k") == "ended" else None

    def never_started(self) -> bool:
        """Tell whether the node was let go because the job was refused on another host."""
        ended = self.ended() or {}
        started = (event for event in events(self.journal) if event["k"] == "started")
        return ended.get("reason") == NEVER_STARTED and not any(started)

    def server(self) -> socket.socket:
        """Return the socket at which the supervisor will take requests."""
        os.chdir(self.path)  # the whole path may be longer than a socket's address can be
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind("socket")
        os.chmod("socket", 0o600)
        server.listen(64)
        return server

    def connect(self) -> socket.socket | None:
        """Return a connection to the supervisor, None if it does not live."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.chdir(self.path)
            link.connect("socket")
        except OSError:
            link.close()
            return None
        return link

    def ask(self, message: Json, timeout: float | None = None) -> Json | None:
        """Return the supervisor's answer, None if it does not live."""
        link = self.connect()
        if link is None:
            return None
        link.settimeout(timeout)
        with link, contextlib.suppress(OSError), link.makefile("rb") as answers:
            link.sendall(encode(message).encode("utf-8", "surrogateescape") + b"\n")
            line = answers.readline()
            return json.loads(line) if line.endswith(b"\n") else None
        return None

    def leave(self) -> None:
        """Note that the owner watches no more: whoever comes next need not wait."""
        with contextlib.suppress(OSError):
            os.utime(self.at("owner"), (0, 0))

    def fresh(self, name: str) -> bool:
        """Tell whether the owner, or who claims to be, has said something lately."""
        with contextlib.suppress(OSError):
            return abs(time.time() - os.stat(self.at(name)).st_mtime) < WATCHED_WITHIN
        return False

    def over(self) -> bool:
        """Tell whether the job has ended; one that was refused leaves nothing."""
        return self.ended() is not None or not os.path.isdir(self.path)


def nodes(root: str) -> Iterator[Node]:
    """Yield every node below a root."""
    import glob

    jobs = os.path.join(root, "jobs")
    for path in sorted(glob.glob(os.path.join(glob.escape(jobs), "*", "*", "*", ""))):
        job, attempt, node = os.path.relpath(path, jobs).split(os.sep)
        with contextlib.suppress(Refusal):  # some folder that is not ours
            yield Node(root, job, attempt, node)


def own_variables(node: Node) -> dict[str, str]:
    """Return the variables by which processes find their node, and the agent its processes."""
    return {"DT_NODE_DIR": node.path, "DT_JOB_MARK": node.mark}
