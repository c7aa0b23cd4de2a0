"""The ranks of a node: started, followed, judged."""

from __future__ import annotations

import os
import time

from .children import scrubbed, set_oom_score, spawn
from .elastic import Elastic, comes_again
from .evidence import exit_story
from .execution import exec_failed
from .exits import exit_record, reaped
from .files import read_json
from .groups import alone, joined
from .kernel import KernelLog
from .launched import Launched
from .memory import CHILD_KILLED, OomKills
from .node import own_variables
from .proxies import exempted
from .serving import Serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .journal import Journal
    from .node import Node
    from .records import Json

    Command = tuple[str, int | None, list[str], dict[str, str]]


START_TIMEOUT = 300.0
UNCHECKED = (
    "rank 0 used none of torch.distributed, mpi4py, Horovod, JAX and TensorFlow: whether the ranks "
    "worked together was not checked"
)


class Started:
    """One process that the supervisor started: a rank, or what launches ranks."""

    def __init__(self, name: str, rank: int | None, pid: int) -> None:
        self.name = name
        self.rank = rank
        self.pid = pid
        self.began = time.monotonic()
        self.ended = False


class Gang:
    """The ranks of a node: who runs, who ended and how."""

    def __init__(self, node: Node, journal: Journal) -> None:
        self.node = node
        self.journal = journal
        self.started: dict[int, Started] = {}
        self.expected: set[int] = set()
        self.serving = Serving()
        self.group_size: int | None = None  # that every rank must join, if that is checked
        self.elastic: Elastic | None = None
        self.begun: set[int] = set()
        self.done: set[int] = set()
        self.start_by = 0.0
        self.failed = False
        self.by_us = False
        self._last_done = 0.0
        self._records: dict[str, int] = {}
        self.launched = Launched()
        self.programs: dict[int, Started] = {}  # of ranks below an mpirun, by process
        self._orphans: dict[int, int] = {}
        self._keep: Sequence[int] = ()
        self._packages: Mapping[str, str] = {}
        self.kernel = KernelLog()
        self.oom_kills = OomKills(self.kernel)

    def start(
        self, request: Json, keep: Sequence[int], packages: Mapping[str, str]
    ) -> dict[str, int]:
        """Start all processes, or raise Refusal at the first that cannot be.

        :param keep: descriptors that each inherits
        :param packages: versions of what the ranks' interpreter has
        """
        self._keep, self._packages = keep, packages
        base = scrubbed(request.get("scrub") or ())
        self.expected = set(request.get("ranks") or ())
        self.elastic = Elastic(request["ranks"]) if request.get("elastic") else None
        self.serving = Serving(request.get("serves"))
        self.group_size = request.get("group_size")
        self.start_by = time.monotonic() + float(request.get("start_timeout") or START_TIMEOUT)
        commands = [(each, self._command(each, base)) for each in request["processes"]]
        for process, command in commands:
            if not self.launched.takes(process, command):
                self._execute(command)
        for started in self.started.values():
            self._began(started.name, started.rank, started.pid)
        return {started.name: pid for pid, started in self.started.items()}

    def daemon(self, number: str, words: str) -> tuple[str, int]:
        """Run a command of a launcher on another host, once, and return its name and process."""
        command = self.launched.daemon(number, words)
        for started in self.started.values():
            if started.name == command[0]:
                return started.name, started.pid
        started = self._execute(command)
        self._began(started.name, None, started.pid)
        return started.name, started.pid

    def is_served(self) -> bool:
        """Tell whether a daemon runs here, which its launcher ends when that ends."""
        return self.launched.is_served and not all(each.ended for each in self.started.values())

    def _execute(self, command: Command) -> Started:
        name, rank, argv, env = command
        log = self.node.at("logs", f"{name}.log")
        try:
            pid = spawn(argv, env, self.node.at("work"), log, self._keep)
        except (OSError, IndexError, TypeError, ValueError) as error:
            raise exec_failed(name, argv, env, error) from error
        set_oom_score(str(pid), 0)
        self.started[pid] = Started(name, rank, pid)
        return self.started[pid]

    def _command(self, process: Json, base: dict[str, str]) -> Command:
        errors = self.node.at("ranks", f"{process['rank']}.error")
        env = {
            **(process.get("defaults") or {}),
            **base,
            **({} if process["rank"] is None else {"TORCHELASTIC_ERROR_FILE": errors}),
            **process["env"],
            **own_variables(self.node),
        }
        env.update(exempted(env, process.get("no_proxy") or ()))
        site = self.node.at("site")
        if os.path.isdir(site):  # what stands first there runs before the rank's program
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (site, env.get("PYTHONPATH"))))
        argv = process["argv"]
        if "mpi4py" in self._packages:
            argv = process.get("with_mpi4py") or argv
        return process["name"], process["rank"], argv, env

    def _began(self, name: str, rank: int | None, pid: int) -> None:
        self.journal.add("started", name=name, rank=rank, pid=pid)
        if rank is not None:
            self.begun.add(rank)

    def logs(self) -> Iterator[tuple[str, int | None]]:
        """Yield the name and the rank of each log that there is or will be."""
        for process in self.started.values():
            yield process.name, process.rank
        for rank in self.expected - {process.rank for process in self.started.values()}:
            if self.elastic is None:
                yield f"rank-{rank}", rank

    def new_logs(self) -> list[tuple[str, int]]:
        """Return logs, once each, whose names nobody could know before their rank began."""
        return self.elastic.new_logs() if self.elastic else []

    def reap(self) -> None:
        """Record who has ended; orphans that became ours are only buried, unless they are ranks."""
        self._orphans = {}
        for pid, status in reaped():
            process = self.started.get(pid)
            if process and not process.ended:
                process.ended = True
                elapsed = time.monotonic() - process.began
                self._exit(exit_record(process.name, process.rank, pid, status, elapsed))
            else:
                self._orphans[pid] = status

    def read_records(self) -> None:
        """Take over what `agent rank` wrote about the ranks below a launcher."""
        entries = [each for each in os.scandir(self.node.at("ranks")) if is_record(each.name)]
        for entry in sorted(entries, key=lambda each: in_order(each.name)):
            inode = entry.inode()  # each record replaces the file
            if self._records.get(entry.name) != inode:
                record = read_json(entry.path)
                if entry.name not in self._records:
                    self._begins(record)
                self._records[entry.name] = inode
                if "elapsed" in record:
                    self.programs.pop(record["pid"], None)
                    self._exit(record)
        self._give_up()
        self._adopt()

    def _begins(self, record: Json) -> None:
        """Take over that a launcher has started a rank."""
        name, rank, pid = record["name"], record["rank"], record["pid"]
        self._began(name, rank, pid)
        self.programs[pid] = Started(name, rank, pid)
        if self.elastic:
            news = self.elastic.begins(record)
            self.expected = self.elastic.ranks
            self.done.discard(rank)
            if news:
                self.journal.add("note", m=news)

    def shrink(self, nodes: int) -> None:
        """Let ranks begin anew that have peers on a host that is lost.

        :param nodes: how many are left of the job
        """
        if self.elastic:
            self.elastic.nodes_left = nodes

    def _give_up(self) -> None:
        if self.elastic and (ended := self.elastic.give_up()):
            why = "had peers on a host that is lost; torchrun goes on without these, if it may"
            self.journal.add("note", m=f"{numbered(ended)} {why}")

    def _adopt(self) -> None:
        """Record ends of ranks whose wrapper an mpirun had killed, so that they became ours."""
        for pid in self.programs.keys() & self._orphans.keys():
            rank = self.programs.pop(pid)
            elapsed = time.monotonic() - rank.began
            record = exit_record(rank.name, rank.rank, pid, self._orphans[pid], elapsed)
            if self.elastic:
                record.update(group=self.elastic.group_of(pid), asked=True)
            self._exit(record)

    def _exit(self, record: Json) -> None:
        if self.serving.may_fall(record["rank"]):
            self._fell(record)
            return
        story = exit_story(self.node, record)
        by_us = self.by_us or bool(self.elastic and self.elastic.gave_up(record["pid"]))
        evidence = [] if by_us else self._memory(record, story["tail"])
        found = {"oom": bool(evidence), "evidence": evidence, "alone": self._alone(record)}
        again = bool(self.elastic) and not self.by_us and comes_again(record)
        self.journal.add("exit", **record, **story, by_us=by_us, again=again, **found)
        succeeded = record["code"] == 0 and not found["alone"]
        if again and (record["asked"] or not succeeded):
            self._make_up(record, by_us=by_us)
        elif record["rank"] is not None and succeeded:
            self.done.add(record["rank"])
            self._last_done = time.monotonic()
        elif record["rank"] is not None or not self.expected:
            self.failed = self.failed or not succeeded

    def _make_up(self, record: Json, *, by_us: bool) -> None:
        """Say that the end of a rank is not that of the job."""
        if not record["asked"] and not by_us:
            how = record["signal"] or f"status {record['code']}"
            left = record["group"]["restarts_left"]
            m = f"rank {record['rank']} has failed ({how}); restarts left to torchrun: {left}"
            self.journal.add("note", m=m)

    def _alone(self, record: Json) -> dict[str, int]:
        """Return the groups of a rank that succeeded by itself, if it should have joined others."""
        if record["rank"] is None or record["code"] != 0 or self.by_us or not self.group_size:
            return {}
        wanted = record["group"]["world_size"] if self.elastic else self.group_size
        sizes = joined(self.node, record["rank"])
        if not sizes and record["rank"] == 0:
            self.journal.add("note", m=UNCHECKED)
        return alone(sizes, wanted if wanted > 1 else None)

    def _fell(self, record: Json) -> None:
        story = exit_story(self.node, record)
        self.journal.add("exit", **record, **story, by_us=True, oom=False, evidence=[])
        self.done.add(record["rank"])

    def _memory(self, record: Json, tail: Sequence[str]) -> list[str]:
        """Return what shows that memory ran out, if that is why a process ended."""
        if record["signal"] == "SIGKILL":
            return self.oom_kills.evidence(record["pid"])
        child = record["code"] == 137 or (record["code"] and any(map(CHILD_KILLED.search, tail)))
        return self.oom_kills.evidence(None) if child else []

    def outcome(self, grace: float) -> tuple[str, str] | None:
        """Return why it is over and how it went, as soon as that is certain."""
        if not self.started and not self.expected:
            return None
        if self.failed:
            return "rank failed", "failed"
        ended = [each.ended for each in self.started.values() if each.rank is None]
        missing = self.expected - self.done
        if missing and any(ended):
            return f"the launcher ended, but {numbered(missing)} did not succeed", "failed"
        if missing and self.serving.is_over(missing):
            return "ranks done", "success"
        if missing or not self.expected:
            return self._waiting(missing)
        # An elastic torchrun waits by itself, and for no longer than it must: its peers need it.
        patient = bool(self.elastic) or time.monotonic() < self._last_done + grace
        lingers = not all(ended) and patient
        return None if lingers else ("ranks done", "success")

    def _waiting(self, missing: set[int]) -> tuple[str, str] | None:
        if self.started and all(each.ended for each in self.started.values()):
            return "ranks done", "failed" if missing else "success"
        late = self.expected - self.begun
        if late and time.monotonic() > self.start_by:
            return f"{numbered(late)} did not start in time (start_timeout)", "failed"
        return None


def numbered(ranks: set[int]) -> str:
    """Return ranks in words."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def is_record(name: str) -> bool:
    """Tell whether a file is what `agent rank` wrote of a rank."""
    return name.endswith(".json")


def in_order(name: str) -> list[int]:
    """Return a key that puts the records of what was started later behind the others."""
    return [int(part) for part in name.split(".")[:-1]]
