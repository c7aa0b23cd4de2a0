"""The supervisor: holds a node's locks, starts its ranks, follows them and ends them."""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from .children import become_reaper, fork, set_oom_score
from .desk import Client, Desk
from .errors import Refusal, preflight_failed, problem, unwritable
from .exits import signal_name
from .facts import boot_id
from .files import disk_free, read_text, write_json, write_whole
from .gpu_faults import gpu_faults, gpu_health
from .journal import Journal
from .leftovers import leave_nothing
from .logs import Logs
from .members import ACTIVE_POLL, Ending, Members
from .mpi_rank import command
from .preflight import Preflight
from .processes import Process
from .ranks import Gang
from .records import encode
from .relays import Relays
from .reservation import Reservation
from .transports import Transports
from .wakeups import Wakeups
from .withheld import note_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .node import Node
    from .records import Json


IDLE_POLL = 0.25
REFRESH_EVERY = 3600.0
JOURNAL_TIMEOUT = 60.0  # how long a full disk may keep the last journal line
DISK_LOW = 1 << 20  # bytes: a disk with less is full, but for some odd blocks
PREPARED_WAIT = 5.0
OVER_SOCKETS = "sockets are used between hosts, and not InfiniBand"
UNPROVEN = (
    "WARNING: whether InfiniBand was used is not known: neither NCCL, UCX nor Intel MPI has told "
    "of a connection to another host"
)


class Supervisor:
    """Holds a node's locks, starts its ranks, follows them and ends them."""

    def __init__(self, node: Node, request: Json, server: socket.socket) -> None:
        self.node = node
        self.request = request
        self.watchdog = os.getppid()
        agents = map(Process.find, (os.getpid(), self.watchdog))
        self.agents = [process for process in agents if process]
        self.since = time.time()
        self.wakeups = Wakeups()
        self.desk = Desk(server)
        self.journal = Journal(node.journal, node.hide)
        self.transports = Transports(node, wanted=bool(request.get("infiniband")))
        self.logs = Logs(node.at("logs"), self.journal, self.transports.hear)
        self.gang = Gang(node, self.journal)
        self.reservation = Reservation(node.key, request)
        self.relays = Relays(self.journal)
        self.gpus = [name[4:] for name in request.get("slots") or () if name.startswith("gpu-")]
        self.gpu_health: Json = {}
        self.grace = float(request.get("grace_period", 30))
        self.stop_signal = str(request.get("stop_signal") or "SIGTERM")
        self.checker: Client | None = None
        self.prepared = False
        self.versions: Json = {}
        self.started = False
        self.pids: dict[str, int] = {}
        self.refusal: Refusal | None = None
        self.ending: Ending | None = None
        self.reason = self.state = ""
        self.waiting: list[Client] = []  # who asked for prepare
        self.farewells: list[tuple[Client, Json]] = []
        self.renewed = self.active = self.refreshed = time.monotonic()

    def run(self) -> None:
        """Tend the node until its last process has ended and the journal says so."""
        become_reaper()
        try:
            self.begin()
        except Refusal as refusal:
            self.refuse(refusal)
        except OSError as error:
            self.refuse(unwritable(self.node.path, error))
        while not self.tick():
            pass
        self.finish()

    # Preparation

    def begin(self) -> None:
        """Note who tends the node, take what it needs and let the preflight run."""
        noted = ("label", "slots", "ports", "stop_signal", "grace_period", "keep_days")
        write_json(
            self.node.at("state.json"),
            {
                **self.node.key,
                **{name: self.request.get(name) for name in noted},
                "agents": [process.key for process in self.agents],
                "boot_id": boot_id(),
                "hostname": socket.gethostname(),
                "since": self.since,
                "secrets": bool(self.request.get("secrets")),
            },
        )
        write_whole(self.node.at("owner"), str(self.request.get("owner") or "").encode())
        self.node.leave()  # it does not watch yet
        self.reservation.take()
        if self.request.get("setup"):
            self.logs.add("setup", "setup")
        self.check()

    def check(self) -> None:
        """Run the preflight in a child, which reports like any client, so that nothing waits."""
        ours, theirs = socket.socketpair()

        def report() -> None:
            Wakeups.forget()
            set_oom_score("self", 0)
            ours.close()
            preflight = Preflight(self.node, self.request)
            problems = preflight.problems()
            found = {} if problems else preflight.versions()
            message = encode({"verb": "checked", "problems": problems, "versions": found})
            theirs.sendall(message.encode("utf-8", "replace") + b"\n")
            if self.gpus and not problems:  # after the answer, since nvidia-smi may take seconds
                health = encode({"verb": "health", "gpus": gpu_health()})
                theirs.sendall(health.encode("utf-8", "replace") + b"\n")

        fork(report)
        theirs.close()
        self.checker = Client(ours)
        self.desk.clients.append(self.checker)

    def refuse(self, refusal: Refusal) -> None:
        """Give everything back, and then say why."""
        if not self.ending:
            self.refusal = refusal
            self.end("refused", "failed")

    # Loop

    def tick(self) -> bool:
        """Do once whatever there is to do, and tell whether all is over."""
        signals = self.wait()
        for client, message in self.desk.messages():
            self.answer(client, message)
        self.gang.oom_kills.note()
        self.gang.reap()
        self.read_records()
        self.judge(signals)
        over = self.ending is not None and self.ending.step()
        self.gang.by_us = self.ending is not None
        if self.logs.follow():
            self.active = time.monotonic()
            over = over and bool(self.ending and self.ending.survivors)  # they may write for ever
        if self.journal.flush():
            self.desk.poke()
        if time.monotonic() - self.refreshed > REFRESH_EVERY:
            self.refreshed = time.monotonic()
            self.reservation.refresh()
        return over

    def read_records(self) -> None:
        """Take over what is known of ranks below a launcher."""
        self.gang.read_records()
        for name, rank in self.gang.new_logs():
            self.logs.add(name, rank)

    def wait(self) -> set[int]:
        """Wait for a signal, a message or the time to look at the logs, and return the signals."""
        poll = select.poll()
        for fd in [self.wakeups.fd, *self.desk.fds()]:
            poll.register(fd, select.POLLIN)
        last_look = self.ending is not None and not self.ending.survivors
        active = last_look or time.monotonic() - self.active < 1
        seconds = 0 if self.logs.behind else ACTIVE_POLL if active else IDLE_POLL
        poll.poll(1000 * seconds)
        return self.wakeups.read()

    def judge(self, signals: set[int]) -> None:
        """Begin the end if there is a reason."""
        if self.ending:
            return
        timeout = self.request.get("orphan_timeout")
        outcome = self.gang.outcome(self.grace)
        self.look_at_transports(at_once=bool(outcome))
        if outcome:
            self.end(*outcome)
        elif signals:
            self.end(f"stopped: the agent received {signal_name(min(signals))}", "stopped")
        elif os.getppid() != self.watchdog:
            self.end("agent lost", "lost")
        elif timeout is not None and time.monotonic() - self.renewed > timeout:
            self.end("orphaned", "stopped")

    def look_at_transports(self, at_once: bool) -> None:
        """End the job if its ranks have to use InfiniBand and do not, and note it once they do."""
        self.transports.look(at_once)
        if at_once and self.transports.wanted:
            self.logs.follow()
        if self.transports.slow and not self.gang.failed:
            self.end(OVER_SOCKETS, "failed")
        elif proof := self.transports.news():
            self.journal.add("note", m=f"InfiniBand is used: {proof}")

    def end(self, reason: str, state: str, grace: float | None = None) -> None:
        """Begin the end; the first reason counts."""
        if self.ending:
            return
        self.reason, self.state, self.active = reason, state, time.monotonic()
        self.journal.add("ending", reason=reason, signal=self.stop_signal)
        self.ending = Ending(
            Members(self.node.mark, self.agents),
            signal.Signals[self.stop_signal],
            self.grace if grace is None else grace,
            self.gang.programs if self.gang.launched.ranks else (),
            self.gang.is_served,
        )

    def finish(self) -> None:
        """Write the last line, give everything back and answer whoever waits for that."""
        self.gang.reap()  # those that ended after the last look at them
        self.read_records()
        self.logs.finish()
        self.note_full_disk()
        self.note_unproven()
        survivors = self.ending.survivors if self.ending else []
        leave_nothing(self.since, self.node.path)
        failed = self.gpus and self.gang.failed  # else nobody asks how the GPUs are
        faults = gpu_faults(self.gpus, self.gpu_health, self.gang.kernel) if failed else []
        if any(fault["hardware"] for fault in faults):
            note_fault(f"under job {self.node.key['job']}, {faults[0]['m']}")
        end = {"state": self.state, "reason": self.reason, "survivors": survivors}
        end.update(self.gang.elastic.told if self.gang.elastic else {})
        slow = self.transports.slow if self.reason == OVER_SOCKETS else ""
        self.journal.add("ended", **end, gpu_faults=faults, over_sockets=slow)
        until = time.monotonic() + (0 if self.refusal else JOURNAL_TIMEOUT)
        while self.journal.flush() and self.journal.backlog and time.monotonic() < until:
            time.sleep(0.5)
        self.desk.poke()
        if self.refusal:
            self.hear_caller()
            self.node.remove()
        self.reservation.release(inherited=bool(survivors))
        last = self.refusal or Refusal("ended", f"the job has ended: {self.reason}")
        for client, reply in [*self.farewells, *((each, last.reply) for each in self.waiting)]:
            client.reply(reply)

    def note_full_disk(self) -> None:
        """Say that what the ranks, or we, wrote did not fit on the disk."""
        free = disk_free(self.node.path)
        why = self.journal.refused or f"{free >> 10} KiB are left on the disk"
        if free < DISK_LOW or self.journal.refused:
            lacking = "logs, the result and outputs may lack what did not fit"
            self.journal.add("note", m=f"WARNING: {self.node.path}: {why}; {lacking}")

    def note_unproven(self) -> None:
        """Say that nobody knows whether InfiniBand was used, though it had to be."""
        if self.transports.wanted and self.state == "success" and not self.transports.fast:
            self.journal.add("note", m=UNPROVEN)

    def hear_caller(self) -> None:
        """Wait for who asked for the node, which may be slower than its refusal."""
        until = time.monotonic() + PREPARED_WAIT
        while not self.waiting and time.monotonic() < until:
            self.wait()
            for client, message in self.desk.messages():
                self.answer(client, message)

    # Requests

    def answer(self, client: Client, message: Json) -> None:
        """Do what a client asks."""
        try:
            getattr(self, f"on_{message['verb']}")(client, message)
        except Refusal as refusal:
            client.reply(refusal.reply)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            client.reply(Refusal("bad_request", f"cannot be understood: {error!r}").reply)

    def on_prepare(self, client: Client, message: Json) -> None:
        """Answer once it is known whether all is well."""
        self.on_renew(client, message)
        if self.prepared:
            client.reply(self.preparation())
        else:
            self.waiting.append(client)

    def preparation(self) -> Json:
        """Return the answer to prepare."""
        facts = {"dir": self.node.path, "work": self.node.at("work"), "boot_id": boot_id()}
        return {"ok": True, **facts, "pid": os.getpid(), "versions": self.versions}

    def on_checked(self, client: Client, message: Json) -> None:
        """Take the findings of the preflight."""
        if message["problems"]:
            self.refuse(preflight_failed(message["problems"]))
        if self.ending:
            return
        self.prepared = True
        self.versions = message["versions"]
        self.journal.add("prepared", slots=self.request.get("slots") or [], pid=os.getpid())
        for each in self.waiting:
            each.reply(self.preparation())
        self.waiting = []

    def on_health(self, client: Client, message: Json) -> None:
        """Keep how the GPUs were before the ranks."""
        self.gpu_health = message["gpus"]

    def on_gone(self, client: Client, message: Json) -> None:
        """Notice a preflight that ended without a word."""
        if client is self.checker and not (self.prepared or self.ending):
            why = (
                "; ".join(read_text(self.node.at("agent.log")).splitlines()[-1:]) or "it was killed"
            )
            do = "look at this host's memory and kernel log, then try again"
            self.refuse(preflight_failed([problem("the preflight did not finish", why, do)]))

    def on_start(self, client: Client, message: Json) -> None:
        """Start the ranks."""
        self.on_renew(client, message)
        if self.started:
            client.reply({"ok": True, "pids": self.pids, "already": True})
            return
        if self.ending or not self.prepared:
            raise Refusal("not_prepared", f"cannot start: {self.reason or 'still preparing'}")
        self.reservation.release_ports()
        try:
            locks = self.reservation.descriptors()
            self.pids = self.gang.start(message, locks, self.versions)
            self.started = True
        except Refusal as refusal:
            self.farewells.append((client, refusal.reply))
            self.end(f"exec failed: {refusal}", "failed", grace=0)
            return
        self.reservation.fulfil()
        for name, rank in self.gang.logs():
            self.logs.add(name, name if rank is None else rank)
        self.active = time.monotonic()
        client.reply({"ok": True, "pids": self.pids})

    def on_rank(self, client: Client, message: Json) -> None:
        """Tell a rank that a launcher has started here what to execute."""
        locks = self.reservation.descriptors()  # a daemon may have closed them
        client.reply(command(self.gang.launched.ranks, message), locks)

    def on_leave(self, client: Client, message: Json) -> None:
        """Let the end of a rank be seen by its mpirun, unless that would kill all others for it.

        These are ended by us, which gives them time to save. Who gets no answer is ended last.
        """
        if message["succeeded"] and not self.ending:
            client.reply({"ok": True})

    def on_relay(self, client: Client, message: Json) -> None:
        """Let a command of a launcher run on another host, and answer when it has ended there."""
        self.relays.ask(client, message)

    def on_relayed(self, client: Client, message: Json) -> None:
        """Tell the launcher how its command has ended."""
        self.relays.answer(message)
        client.reply({"ok": True})

    def on_daemon(self, client: Client, message: Json) -> None:
        """Run a command of a launcher on another host here, once."""
        if self.ending or not self.started:
            raise Refusal("not_prepared", f"cannot start: {self.reason or 'nothing was started'}")
        name, pid = self.gang.daemon(message["id"], message["command"])
        if name not in self.pids:
            self.pids[name] = pid
            self.logs.add(name, name)
        client.reply({"ok": True, "pid": pid})

    def on_release(self, client: Client, message: Json) -> None:
        """Let ranks end that serve others: these have done their work, on all hosts."""
        if self.gang.serving.release():
            self.journal.add("released")
        client.reply({"ok": True})

    def on_shrink(self, client: Client, message: Json) -> None:
        """Let ranks begin anew that wait for those of a lost host."""
        if not self.ending:
            self.gang.shrink(int(message["nodes"]))
        client.reply({"ok": True})

    def on_stop(self, client: Client, message: Json) -> None:
        """End the ranks."""
        self.end(f"stopped: {message['reason']}", "stopped")
        client.reply({"ok": True})

    def on_watch(self, client: Client, message: Json) -> None:
        """Tell a client from now on whenever the journal grows."""
        client.watches = True
        if message.get("renews", True):  # who only looks does not keep the job alive
            self.on_renew(client, message)

    def on_renew(self, client: Client, message: Json) -> None:
        """Renew the lease."""
        self.renewed = time.monotonic()
