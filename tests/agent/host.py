"""A host in a folder: the real agent behind a plain shell, as it stands behind sshd."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from distributed_training.agent import COMMAND, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]
PATIENCE = 60.0


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Return the first true value of a condition."""
    limit = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < limit, f"never came true: {what or condition}"
        time.sleep(0.01)
    return value


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


def marked(mark: str) -> list[int]:
    """Return the processes that bear a job's mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "environ").read_bytes().split(b"\0")
            if f"DT_JOB_MARK={mark}".encode() in words and alive(int(path.name)):
                found.append(int(path.name))
    return found


class Answer:
    """What a call wrote to stdout: noise, a marker, a record, and whatever follows."""

    def __init__(self, stdout: IO[bytes], marker: str) -> None:
        self.stdout = stdout
        while (line := stdout.readline()) != marker.encode() + b"\n":
            assert line, "the agent ended without an answer"
        self.record: Json = json.loads(stdout.readline())


@dataclass
class Host:
    """This machine, with a root and a lock folder of its own."""

    root: Path
    locks: Path
    env: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    profile: str = ""

    def open(self, verb: str, **fields: Any) -> tuple[subprocess.Popen[bytes], str]:
        """Start a call, and return it with its marker."""
        marker = secrets.token_hex(8)
        call = subprocess.Popen(
            [*self.prefix, "/bin/sh", "-c", self.profile + COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "DT_LOCK_DIR": str(self.locks), **self.env},
        )
        assert call.stdin
        call.stdin.write(request(verb, marker, root=str(self.root), **fields))
        call.stdin.flush()
        return call, marker

    def call(self, verb: str, *, data: bytes = b"", **fields: Any) -> Json:
        """Return the answer to a request."""
        return self.stream(verb, data=data, **fields)[0]

    def stream(self, verb: str, *, data: bytes = b"", **fields: Any) -> tuple[Json, bytes]:
        """Return the answer to a request and the bytes behind it."""
        call, marker = self.open(verb, **fields)
        assert call.stdin
        assert call.stdout
        with call:
            with suppress(BrokenPipeError):
                call.stdin.write(data)
                call.stdin.close()
            answer = Answer(call.stdout, marker)
            rest = call.stdout.read()
        assert call.returncode == 0
        return answer.record, rest


class Watcher:
    """An attached client."""

    def __init__(self, job: Job, **fields: Any) -> None:
        self.call, marker = job.host.open("attach", **job.key, **fields)
        assert self.call.stdin
        assert self.call.stdout
        self.stdin, self.stdout = self.call.stdin, self.call.stdout
        self.answer = Answer(self.stdout, marker).record
        self.offset: int = self.answer.get("offset", 0)

    def lines(self) -> Iterator[Json]:
        """Yield the journal, line by line."""
        for line in self.stdout:
            record = json.loads(line)
            if "t" in record:
                self.offset += len(line)
                yield record

    def say(self, line: str) -> None:
        """Send a line."""
        self.stdin.write(line.encode() + b"\n")
        self.stdin.flush()

    def cut(self) -> None:
        """Break the connection."""
        self.call.kill()
        self.call.wait()
        self.stdin.close()
        self.stdout.close()


class Job:
    """One node's part in a job."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.key: Json = {"job": f"job-{secrets.token_hex(4)}", "attempt": 1, "node": 0}
        self.mark = f"{self.key['job']}/1/0"

    @property
    def path(self) -> Path:
        """The node's folder."""
        return self.host.root / "jobs" / self.mark

    def call(self, verb: str, **fields: Any) -> Json:
        """Return the answer to a request about this job."""
        return self.host.call(verb, **self.key, **fields)

    def prepare(self, **fields: Any) -> Json:
        """Prepare the node, with short times."""
        usual = {"slots": [], "grace_period": 5, "orphan_timeout": None, "owner": "me"}
        return self.call("prepare", **{**usual, **fields})

    def start(self, *programs: str, **fields: Any) -> Json:
        """Start one rank for each Python program."""
        processes = [self.rank(rank, program) for rank, program in enumerate(programs)]
        usual = {"processes": processes, "ranks": list(range(len(programs)))}
        return self.call("start", **{**usual, **fields})

    def run(self, *programs: str, **fields: Any) -> list[Json]:
        """Prepare and start, and return the whole journal."""
        prepared = self.prepare(**fields)
        assert prepared["ok"], prepared
        started = self.start(*programs)
        assert started["ok"], started
        return self.journal()

    def journal(self) -> list[Json]:
        """Return the whole journal, once it has its last line."""
        watcher = Watcher(self, offset=0)
        with watcher.call:
            return list(watcher.lines())

    def events(self, kind: str) -> list[Json]:
        """Return the records of one kind that the journal has now."""
        with suppress(FileNotFoundError):
            lines = (self.path / "journal.jsonl").read_text().splitlines()
            return [each for each in map(json.loads, lines) if each["k"] == kind]
        return []

    def wait_for(self, text: str) -> None:
        """Wait until a log line with this text is in the journal."""
        until(lambda: any(text in each["m"] for each in self.events("log")), text)

    def agents(self) -> tuple[int, int]:
        """Return the supervisor and the watchdog."""
        (supervisor, _), (watchdog, _) = json.loads((self.path / "state.json").read_text())[
            "agents"
        ]
        return supervisor, watchdog

    @staticmethod
    def rank(rank: int, program: str, **env: str) -> Json:
        """Return a rank that runs a Python program."""
        argv = [sys.executable, "-c", textwrap.dedent(program)]
        variables = {"PYTHONUNBUFFERED": "1", "RANK": str(rank), **env}
        return {"name": f"rank-{rank}", "rank": rank, "argv": argv, "env": variables}

    def clear(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError, ValueError):
            for pid in self.agents():
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def as_user(uid: int, shared: Path) -> Host:
    """Return the host as another user sees it."""
    home = shared / str(uid)
    home.mkdir()
    os.chown(home, uid, uid)
    prefix = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    env = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return Host(home / "root", shared / "locks", env, prefix)


def texts(journal: list[Json], source: object = 0) -> list[str]:
    """Return the log lines of one source."""
    return [each["m"] for each in journal if each["k"] == "log" and each["r"] == source]


def exits(journal: list[Json]) -> dict[int, Json]:
    """Return how each rank ended."""
    return {each["rank"]: each for each in journal if each["k"] == "exit"}
