"""The agent: starts, watches and ends the ranks of one node; sent over SSH, never installed."""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import sys
import time

TYPE_CHECKING = False  # importing typing would cost every call several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

    Json = Dict[str, Any]
    Check = Callable[[], Optional[Json]]
    Command = Tuple[str, Optional[int], List[str], Dict[str, str]]
    Hide = Callable[[str], str]
    Flaws = Callable[["Checkpoint"], Iterator[str]]

# --- Constants -------------------------------------------------------------------------------

LOCK_FOLDER = os.environ.get("DT_LOCK_DIR") or "/tmp/.distributed_training"
LOCK_TRIES = 10  # an offer that looks at a lock holds it for an instant
TICKET_LIFE = 60.0  # seconds that a wish for slots counts after it was renewed
INHERITED_FD = 200  # shell scripts use low descriptors for themselves, and would close a lock

ACTIVE_POLL, IDLE_POLL = 0.05, 0.25
LOG_SLICE = 0.03  # seconds of reading logs before the socket is looked at again
LOG_CHUNK = 64 << 10
LOG_LIMIT = 64 << 20  # bytes of log that go into one node's journal
LINE_COST = 40  # bytes that a line of log takes in the journal beside its text
LINE_LIMIT = 16 << 10
PARTIAL_AFTER = 1.0  # seconds until a line without newline is shown
PROGRESS_EVERY = 2.0  # seconds between two states of a progress bar
TAIL_BYTES, TAIL_LINES, TAIL_WIDTH = 512 << 10, 50, 500
TRACE_HEAD, TRACE_LINES, MESSAGE_LINES = 15, 60, 8
WARNING_LINES = 5
SECRET_LENGTH = 4  # what is shorter would mask half of a log
OOM_WINDOW = 10.0  # seconds that a large process may take to be gone after it was killed

ALIVE_EVERY = 5.0
CLIENT_TIMEOUT = 60.0
WATCHED_WITHIN = 10.0  # a watcher says something every 5 s
REACH_TIMEOUT = 15.0
NEIGHBOUR_TIMEOUT = 5.0  # seconds that a host is given to answer another one
START_TIMEOUT = 300.0
REFRESH_EVERY = 3600.0
KILL_TIMEOUT = 15.0  # a process in an uninterruptible call may outlive SIGKILL for ever
JOURNAL_BACKLOG = 1 << 20
JOURNAL_TIMEOUT = 60.0  # how long a full disk may keep the last journal line
SEND_CHUNK = 256 << 10
RESULT_LIMIT = 1 << 20
DISK_LOW = 1 << 20  # bytes: a disk with less is full, but for some odd blocks
GPU_RELEASE_TIMEOUT = 10.0  # a driver frees memory a little after the last process has ended
NEVER_STARTED = "stopped: not started"  # the end of a node whose gang did not come about
PREPARED_WAIT = 5.0
BIRTH_TIMEOUT = 60.0  # how long a new agent may take, on the slowest host, to note who it is

# Where marks outlive a restart of the host, for all its users.
WITHHELD = os.path.join(
    os.environ.get("DT_LOCK_DIR") or "/var/tmp/.distributed_training", "withheld.json"
)
LOGIND = (
    ("KillUserProcesses", "kill its ranks (KillUserProcesses=yes)"),
    ("RemoveIPC", "empty its /dev/shm (RemoveIPC=yes)"),
)
FRAMEWORKS = (
    "torch", "tensorflow", "jax", "mpi4py", "deepspeed", "horovod", "accelerate", "lightning",
    "ray",
)  # fmt: skip
VERSIONS = """
import json, sys
from importlib import metadata
found = {"python": ".".join(map(str, sys.version_info[:3]))}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print("\\n\\n" + json.dumps(found))
"""
SHM_NAMES = (
    "torch_*", "nccl-*", "psm_*", "sem.mp-*", "cuda.shm.*", "vader_segment.*", "sm_segment.*",
    "__KMP_REGISTERED_LIB_*",
)  # fmt: skip
# Of https://docs.nvidia.com/deploy/xid-errors: others (13, 31, 43, …) are mostly of programs.
HARDWARE_XIDS = {48, 61, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140}
KNOCK_TIMEOUT = 5.0
HOUSEKEEPING_EVERY = 3600.0
COLLECTED_AFTER = 3600.0  # a job that has just ended may still be asked for its results
KEEP_DAYS = 7.0

STACKS_SIGNAL = signal.SIGRTMAX - 7  # sitecustomize.py, which runs in every rank, has the same
STACKS_WAIT = 3.0
STACKS_PAUSE = 0.1  # they come in small pieces, and are whole when none has come for so long
STACKS_LIMIT, STACKS_SHOWN = 1 << 20, 16 << 10  # of one process: in a file, in an answer
PROCESSES_SHOWN, PROCESSES_SPIED = 8, 2  # of one rank
LAST_COLLECTIVES = 5

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Refusal(Exception):
    """A request that cannot be met, as the caller will read it."""

    def __init__(self, kind: str, message: str, **fields: object) -> None:
        super().__init__(message)
        self.reply: Json = {"ok": False, "error": {"kind": kind, "message": message, **fields}}


def problem(what: str, why: str, do: str) -> Json:
    """Return one finding of the preflight."""
    return {"what": what, "why": why, "do": do}


def preflight_failed(problems: Sequence[Json]) -> Refusal:
    """Return the refusal that lists every finding of the preflight."""
    text = "; ".join(f"{each['what']}: {each['why']}" for each in problems)
    return Refusal("preflight", text, problems=list(problems))


def unwritable(path: str, error: OSError) -> Refusal:
    """Return the refusal for a folder that cannot be written."""
    why = error.strerror or str(error)
    do = "free space there or make it writable for this user, or set work_dir to another folder"
    return preflight_failed([problem(f"cannot write {error.filename or path}", why, do)])


# --- Files -----------------------------------------------------------------------------------


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Create files with another umask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def read_text(path: str) -> str:
    """Return the text of a file, empty if there is none."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def read_json(path: str) -> Json:
    """Return the object in a file, empty if there is none or it is broken."""
    with contextlib.suppress(ValueError):
        record = json.loads(read_text(path) or "{}")
        return record if isinstance(record, dict) else {}
    return {}


def write_whole(path: str, data: bytes) -> None:
    """Write a file that a reader sees whole or not at all."""
    draft = f"{path}.{os.getpid()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def write_json(path: str, record: Json) -> None:
    """Write a record that a reader sees whole or not at all."""
    write_whole(path, encode(record).encode("utf-8", "replace"))


def remove_tree(path: str) -> None:
    """Remove a folder, its read-only folders too."""
    import shutil

    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def tree_size(path: str) -> int:
    """Return the bytes in a file or below a folder."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    size = 0
    for file in files or [path]:
        with contextlib.suppress(OSError):
            size += os.lstat(file).st_size
    return size


# --- Host facts ------------------------------------------------------------------------------


def boot_id() -> str:
    """Return what changes whenever the host starts."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def user_name(uid: Optional[int] = None) -> str:
    """Return a user's name, or the number of one without a name."""
    import pwd

    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def nvidia_smi(query: str) -> List[List[str]]:
    """Return the rows that nvidia-smi answers, none where it is absent or fails."""
    import shutil

    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", "/usr/local/cuda/bin"])
    program = shutil.which("nvidia-smi", path=path)
    told = output_of([program, query, "--format=csv,noheader,nounits"]) if program else None
    lines = (told or "").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [row for row in rows if len(row) > query.count(",")]  # else a remark, not a row


def gpus() -> List[Json]:
    """Return the GPUs of the host."""
    found = []
    for uuid, index, *name, memory in nvidia_smi("--query-gpu=uuid,index,name,memory.total"):
        size = int(memory) if memory.isdigit() else 0
        found.append({"uuid": uuid, "index": int(index), "name": ",".join(name), "memory_mb": size})
    return found


def interfaces() -> Dict[str, str]:
    """Return which interface holds each address of the host, asked of the kernel by netlink."""
    dump = struct.pack("=IHHIIB7x", 24, 22, 0x301, 1, 0, socket.AF_UNSPEC)  # RTM_GETADDR
    holders: Dict[str, str] = {}
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


def interface_address(message: bytes) -> Iterator[Tuple[str, str]]:
    """Yield the address and the interface of one netlink answer."""
    family, index, at = message[0], struct.unpack_from("=I", message, 4)[0], 8
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind in (1, 2):  # IFA_ADDRESS, IFA_LOCAL
            address = socket.inet_ntop(family, message[at + 4 : at + size])
            yield address, socket.if_indextoname(index)
        at += (size + 3) & ~3


def route(peer: str, holders: Dict[str, str]) -> Json:
    """Return the interface and the own address by which this host reaches a peer."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing: the kernel only looks up the route
            source = str(probe.getsockname()[0])
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"interface": holders.get(source.partition("%")[0], ""), "source": source}


# --- Fitness ---------------------------------------------------------------------------------


def output_of(command: Sequence[str], env: Optional[Dict[str, str]] = None) -> Optional[str]:
    """Return what a program prints, None where it is absent, fails or hangs."""
    import subprocess

    nobody, pipe = subprocess.DEVNULL, subprocess.PIPE
    with contextlib.suppress(OSError):
        process = subprocess.Popen(command, env=env, stdin=nobody, stdout=pipe, stderr=nobody)
        try:
            told = process.communicate(timeout=20)[0].decode("utf-8", "replace")
            return None if process.returncode else told
        except subprocess.TimeoutExpired:
            process.kill()  # without waiting: in a broken driver it may hang for ever
    return None


def fitness(root: str) -> Json:
    """Return what makes a host fit for training or unfit, as far as it costs nothing to know."""
    import glob
    import resource

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "disk_free": disk_free(root),
        "shm_free": disk_free("/dev/shm"),
        "memlock": None if limit == resource.RLIM_INFINITY else limit,
        "infiniband": os.path.isdir("/dev/infiniband"),
        "gpu_devices": len(glob.glob("/dev/nvidia[0-9]*")),
    }


def versions(python: str, env: Dict[str, str], folder: str) -> Json:
    """Return the versions of an interpreter and of frameworks there, without importing these."""
    import shutil

    program = os.path.join(folder, python) if "/" in python else python
    path = shutil.which(program, path=env.get("PATH", os.defpath))
    told = output_of([path, "-c", VERSIONS, *FRAMEWORKS], env) if path else None
    with contextlib.suppress(ValueError):
        record = json.loads((told or "").rpartition("\n\n")[2])
        return record if isinstance(record, dict) else {}
    return {}


def in_use(strangers: Sequence[int]) -> Json:
    """Return the finding that processes of nobody's job are on GPUs."""
    told = ", ".join(f"{pid} of {process_user(pid)} ({command_of(pid)})" for pid in strangers)
    do = "end them, or leave these GPUs out with gpus= in the fleet"
    return problem("a wanted GPU is in use", f"by processes of no job: {told}", do)


def logind() -> Optional[Json]:
    """See that systemd lets a job outlive the SSH session that started it."""
    user = user_name()
    if os.getuid() == 0 or not os.path.isdir("/run/systemd/system"):
        return None  # root is exempt from both settings
    if os.path.exists(f"/var/lib/systemd/linger/{user}"):
        return None
    told = output_of(["loginctl", "show-session", "-p", "KillUserProcesses", "-p", "RemoveIPC"])
    harms = [harm for setting, harm in LOGIND if f"{setting}=yes" in (told or "")]
    if not harms or output_of(["loginctl", "--no-ask-password", "enable-linger"]) is not None:
        return None
    why = f"once the last session of user {user} closes, it would {' and '.join(harms)}"
    do = f"let an administrator run once: sudo loginctl enable-linger {user}"
    return problem("systemd-logind would break the job", why, do)


def withheld() -> Json:
    """Return who has drained the host, and its last fault of its own."""
    line = read_text(WITHHELD).partition("\n")[0]  # it is written by one call, and then cut
    with contextlib.suppress(ValueError):
        record = json.loads(line)
        return record if isinstance(record, dict) else {}
    return {}


def withhold(marks: Json) -> None:
    """Note for all users of the host why it should not be used; None takes a mark back."""
    with contextlib.suppress(FileExistsError), umask(0):
        os.mkdir(os.path.dirname(WITHHELD), 0o1777)
    fd = open_lock(WITHHELD)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever writes takes no time
        stamped = {name: {"since": time.time(), **mark} for name, mark in marks.items() if mark}
        kept = {name: mark for name, mark in withheld().items() if name not in marks}
        line = encode({**kept, **stamped}).encode("utf-8", "replace") + b"\n"
        os.pwrite(fd, line, 0)
        os.ftruncate(fd, len(line))
    finally:
        os.close(fd)


def note_fault(reason: str) -> None:
    """Note a fault of the host's own, if that can be done: it is not worth a job's end."""
    with contextlib.suppress(OSError):
        withhold({"fault": {"reason": reason}})


def note_restart(root: str) -> None:
    """Notice jobs that a restart of the host has ended, once after each."""
    stamp = os.path.join(root, "boot_id")
    if not os.path.isdir(root) or read_text(stamp) == boot_id():
        return
    for node in nodes(root):
        tend(node)
    with contextlib.suppress(OSError):
        write_whole(stamp, boot_id().encode())


def leave_no_shm(since: float) -> None:
    """Remove what frameworks of an ended job have left in /dev/shm, as killed ranks do."""
    from fnmatch import fnmatchcase

    left = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir("/dev/shm"):
            stat = entry.stat(follow_symlinks=False)
            known = any(fnmatchcase(entry.name, pattern) for pattern in SHM_NAMES)
            if known and stat.st_uid == os.geteuid() and stat.st_ctime >= since:
                left[entry.path] = entry.name
    used = "".join(map(open_shm, process_table())) if left else ""
    for path, name in left.items():
        if f"/{name}\n" not in used:
            with contextlib.suppress(OSError):
                os.unlink(path)


def open_shm(pid: int) -> str:
    """Return the lines that tell which segments a process has mapped or open."""
    lines = [line for line in read_text(f"/proc/{pid}/maps").splitlines() if "/dev/shm/" in line]
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                lines.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return "".join(line + "\n" for line in lines)


# --- Locks and ports -------------------------------------------------------------------------


def lock_path(name: str) -> str:
    """Return the file of a lock in the folder that all users of the host share."""
    return os.path.join(LOCK_FOLDER, name.replace("/", "_") + ".lock")


def share_folder(path: str) -> None:
    """Make a folder that all users of the host may use as they use /tmp."""
    with contextlib.suppress(FileExistsError), umask(0):
        os.mkdir(path, 0o1777)


def open_lock(path: str) -> int:
    """Open a lock file, whoever made it."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        # fs.protected_regular refuses O_CREAT on another user's file in a sticky folder.
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError), umask(0):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)


class Lock:
    """A lease on a slot or a port, freed when the last process that inherited it has ended."""

    def __init__(self, fd: int) -> None:
        self.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, INHERITED_FD)
        os.close(fd)

    @classmethod
    def take(cls, name: str, holder: Json) -> Optional[Lock]:
        """Take a lock, or return None if someone holds it."""
        path = lock_path(name)
        share_folder(LOCK_FOLDER)
        for _ in range(LOCK_TRIES):
            lock = cls(open_lock(path))
            try:
                fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A cleaner of /tmp may have removed the file between the two calls.
                if os.path.samestat(os.fstat(lock.fd), os.stat(path)):
                    lock.write(holder)
                    return lock
            except (BlockingIOError, FileNotFoundError):
                time.sleep(0.02)
            lock.release()
        return None

    def write(self, holder: Json) -> None:
        """Tell others who holds it; on a full disk nobody learns."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, encode(holder).encode("utf-8", "replace"), 0)

    def refresh(self) -> None:
        """Keep cleaners of /tmp from taking the file for forgotten."""
        os.utime(self.fd)

    def release(self, remove: bool = False) -> None:
        """Let go of it; processes that inherited it hold it on.

        :param remove: nobody has inherited it: its file may go, too
        """
        if remove:
            with contextlib.suppress(OSError):
                os.unlink(os.readlink(f"/proc/self/fd/{self.fd}"))
        os.close(self.fd)

    @staticmethod
    def holder(name: str) -> Optional[Json]:
        """Return who holds a lock, None if it is free."""
        path = lock_path(name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_json(path)
        finally:
            os.close(fd)
        return None


def take_all(names: Sequence[str], holder: Json, claims: Dict[str, Json]) -> List[Lock]:
    """Take the locks of all slots, or none; those that older jobs wait for are left to them."""
    refused = [name for name in names if name in claims]
    locks = {name: Lock.take(name, holder) for name in names if not refused}
    taken = [lock for lock in locks.values() if lock]
    if len(taken) == len(names):
        return taken
    for lock in taken:
        lock.release()
    refused = refused or [name for name, lock in locks.items() if not lock]
    holders = {name: Lock.holder(name) or claims.get(name) or {} for name in refused}
    told = ", ".join(
        f"{name} {'awaited' if who.get('waiting') else 'held'} by job {who.get('job', '?')} "
        f"of user {who.get('user', '?')}"
        for name, who in holders.items()
    )
    message = f"slots in use: {told}; wait for them with queue_timeout=, or stop that job"
    raise Refusal("slots_busy", message, holders=holders)


class Ticket:
    """A dated wish for slots of one host: it goes before all later ones while its job renews it."""

    FOLDER = os.path.join(LOCK_FOLDER, "tickets")

    def __init__(self, request: Json) -> None:
        import hashlib

        # Users, and Airflow installations, may have jobs of the same name.
        whose = f"{os.getuid()}:{root_of(request)}:{request['job']}"
        parts = (hashlib.sha256(part.encode()).hexdigest() for part in (whose, request["place"]))
        self.owner, place = (part[:20] for part in parts)
        self.path = os.path.join(self.FOLDER, f"{self.owner}-{place}")
        self.rank = (float(request["since"]), str(request["job"]), self.owner)
        told = {name: request.get(name) for name in ("job", "label", "since", "slots")}
        self.record: Json = {**told, "user": user_name(), "waiting": True}

    @classmethod
    def of(cls, request: Json) -> Optional[Ticket]:
        """Return the ticket of a job that may wait, None for one that may not."""
        return None if request.get("since") is None else cls(request)

    def leave(self) -> None:
        """Write it, or renew it."""
        import tempfile

        with contextlib.suppress(OSError):  # on a full disk the job has to be lucky
            share_folder(LOCK_FOLDER)
            share_folder(self.FOLDER)
            fd, draft = tempfile.mkstemp(prefix=".", dir=self.FOLDER)
            with open(fd, "wb") as file:
                os.fchmod(fd, 0o644)
                file.write(encode(self.record).encode("utf-8", "replace"))
            os.replace(draft, self.path)

    def withdraw(self) -> None:
        """Let others have what the job does not wait for any more."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def claimed_slots(ticket: Optional[Ticket]) -> Dict[str, Json]:
    """Return who waits for each slot and goes before this ticket, or before a job without one."""
    claims: Dict[str, Json] = {}
    for name, record in live_tickets():
        with contextlib.suppress(LookupError, TypeError, ValueError):  # anybody may write there
            rank = (float(record["since"]), str(record["job"]), name.partition("-")[0])
            if ticket and (rank > ticket.rank or name.startswith(ticket.owner)):
                continue
            for slot in record["slots"]:
                if slot not in claims or record["since"] < claims[slot]["since"]:
                    claims[slot] = record
    return claims


def live_tickets() -> Iterator[Tuple[str, Json]]:
    """Yield the name and the content of every ticket that counts."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(Ticket.FOLDER)):
            with contextlib.suppress(OSError):
                age = abs(time.time() - entry.stat(follow_symlinks=False).st_mtime)
                whole = entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
                if age > 10 * TICKET_LIFE:
                    os.unlink(entry.path)
                elif age < TICKET_LIFE and whole:
                    yield entry.name, read_json(entry.path)


def busy_slots() -> Dict[str, Json]:
    """Return who holds each slot in use."""
    names = sorted(os.listdir(LOCK_FOLDER)) if os.path.isdir(LOCK_FOLDER) else []
    locks = (name[: -len(".lock")] for name in names if name.endswith(".lock"))
    holders = ((name, Lock.holder(name)) for name in locks if not name.startswith("port-"))
    return {name: holder for name, holder in holders if holder is not None}


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


def free_ports(count: int) -> List[int]:
    """Return ports that nobody holds, outside the range of outgoing connections."""
    import random

    low, high = map(int, (read_text("/proc/sys/net/ipv4/ip_local_port_range") or "0 0").split())
    candidates = [port for port in range(10000, 65536) if not low <= port <= high]
    free: List[int] = []
    for port in random.sample(candidates, min(len(candidates), 40 * count)):
        with contextlib.suppress(OSError):
            if Lock.holder(f"port-{port}") is None:
                listen(port).close()
                free.append(port)
        if len(free) == count:
            break
    return free


def listener_of(port: int) -> Tuple[str, Optional[int]]:
    """Return the inode and the user of the socket that listens on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(table).splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                return cells[9], int(cells[7])
    return "", None


def socket_owner(inode: str) -> Optional[int]:
    """Return the process that has a socket open, None if it cannot be seen."""
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == f"socket:[{inode}]":
                    return int(pid)
    return None


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    return read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


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


# --- Processes -------------------------------------------------------------------------------


class Process:
    """A process, told by its start time from a later one with the same number."""

    __slots__ = ("parent", "pid", "start")

    def __init__(self, pid: int, start: int, parent: int = 0) -> None:
        self.pid = pid
        self.start = start
        self.parent = parent

    @classmethod
    def find(cls, pid: int) -> Optional[Process]:
        """Return a process that has not ended."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The program's name stands in brackets and may hold blanks and brackets.
                cells = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        # A main thread that has ended looks like a zombie, though others run on.
        ended = cells[0] in b"ZX" and int(cells[17]) <= 1
        return None if ended else cls(pid, int(cells[19]), int(cells[1]))

    @property
    def key(self) -> Tuple[int, int]:
        """Return what no other process of this host shares."""
        return self.pid, self.start

    def alive(self) -> bool:
        """Tell whether this very process still runs."""
        now = Process.find(self.pid)
        return now is not None and now.start == self.start

    def send(self, number: int) -> None:
        """Signal this very process, unless it has ended."""
        handle = process_handle(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.alive():
                if handle is None:
                    os.kill(self.pid, number)
                else:
                    signal.pidfd_send_signal(handle, number)
        if handle is not None:
            os.close(handle)


def process_handle(pid: int) -> Optional[int]:
    """Return a handle that stays with a process, where Python and the kernel have them."""
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None


def process_table() -> Dict[int, Process]:
    """Return every process of the host that has not ended."""
    found = (Process.find(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def bears(pid: int, mark: bytes) -> bool:
    """Tell whether one of this user's processes was started with a job's mark."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


class Members:
    """The processes of a job: what its agents started, and whatever bears its mark."""

    def __init__(self, mark: str, agents: Sequence[Process]) -> None:
        self.mark = b"DT_JOB_MARK=" + mark.encode()
        self.agents = agents

    def find(self) -> List[Process]:
        """Return the members that have not ended."""
        table = process_table()
        roots = {each.pid for each in self.agents if each.alive()}
        members = self.descendants(table, roots)
        for pid in table.keys() - members - roots - {os.getpid()}:
            if bears(pid, self.mark):
                members.add(pid)
        return [table[pid] for pid in members]

    @staticmethod
    def descendants(table: Dict[int, Process], roots: Set[int]) -> Set[int]:
        """Return the processes below others."""
        children: Dict[int, List[int]] = {}
        for process in table.values():
            children.setdefault(process.parent, []).append(process.pid)
        found: Set[int] = set()
        queue = list(roots)
        while queue:
            for pid in children.get(queue.pop(), ()):
                if pid not in found:
                    found.add(pid)
                    queue.append(pid)
        return found - roots


class Ending:
    """The end of all members: stop signal, grace period, SIGKILL, until nobody is left."""

    def __init__(self, members: Members, stop_signal: int, grace: float) -> None:
        self.members = members
        self.stop_signal = stop_signal
        self.kill_at = time.monotonic() + grace
        self.signalled: Set[Tuple[int, int]] = set()
        self.survivors: List[int] = []
        self._quiet = 0

    def step(self) -> bool:
        """Signal whom it is time to signal, and tell whether it is over."""
        now = time.monotonic()
        left = self.members.find()
        self.survivors = sorted(process.pid for process in left)
        self._quiet = 0 if left else self._quiet + 1
        if self._quiet >= 2 or now > self.kill_at + KILL_TIMEOUT:
            return True
        for process in left if now >= self.kill_at else self._topmost(left):
            process.send(signal.SIGKILL if now >= self.kill_at else self.stop_signal)
            self.signalled.add(process.key)
        return False

    def _topmost(self, left: Sequence[Process]) -> List[Process]:
        # A launcher passes the signal on, and a rank that saves its state still needs its helpers:
        # so each process is asked only when its parent is gone.
        pids = {process.pid for process in left}
        return [
            process
            for process in left
            if process.parent not in pids and process.key not in self.signalled
        ]


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_of(status: int) -> Tuple[Optional[int], Optional[str]]:
    """Return the exit code, or the signal, of a wait status."""
    if os.WIFSIGNALED(status):
        return None, signal_name(os.WTERMSIG(status))
    return os.WEXITSTATUS(status), None


def exit_record(
    name: str, rank: Optional[int], pid: int, status: Optional[int], elapsed: float
) -> Json:
    """Return how a process ended; without a wait status nobody knows."""
    code, killed_by = (None, None) if status is None else exit_of(status)
    how = {"code": code, "signal": killed_by, "elapsed": round(elapsed, 3)}
    return {"name": name, "rank": rank, "pid": pid, **how}


def reaped() -> Iterator[Tuple[int, int]]:
    """Yield number and wait status of each child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def spawn(
    argv: Sequence[str], env: Dict[str, str], work: str, log: str, keep: Sequence[int] = ()
) -> int:
    """Start a program in a session of its own, with its output in a file, and return its number."""
    import subprocess

    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            list(argv),
            env=env,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
            pass_fds=tuple(keep),
        )
    finally:
        os.close(fd)
    process.returncode = 0  # keeps Popen from waiting for it: reaped() does
    return process.pid


def scrubbed(patterns: Sequence[str]) -> Dict[str, str]:
    """Return the environment of the SSH login without the variables that must not reach a rank."""
    from fnmatch import fnmatchcase

    return {
        name: value
        for name, value in os.environ.items()
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def become_reaper() -> None:
    """Let orphans below this process become its children."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def set_oom_score(pid: str, score: int) -> None:
    """Say how readily the kernel may kill a process when memory runs out, where we may."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(str(score))


def fork(body: Callable[[], None]) -> int:
    """Run something in a child process, and return the child's number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        body()
        status = 0
    except BaseException:  # whatever it is, it must not climb into the parent's code
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def detach(body: Callable[[], None], errors: str, keep: Sequence[int] = ()) -> None:
    """Run something in a process that shares nothing with this call and outlives it."""

    def leave() -> None:
        os.setsid()
        close_all_but(keep, errors)
        fork(body)

    os.waitpid(fork(leave), 0)


def close_all_but(keep: Sequence[int], errors: str) -> None:
    """Close every descriptor but those given; stdin and stdout become nothing, stderr a file."""
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for fd, target in enumerate((null, null, log)):
        os.dup2(target, fd)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


# --- Journal ---------------------------------------------------------------------------------


class Journal:
    """The append-only record of a node's part in a job."""

    def __init__(self, path: str, hide: Hide = str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._hide = hide
        self._lines: List[str] = []
        self._rest = b""
        self._fresh = True
        self.backlog = 0
        self.refused = ""  # why something could not be written at once

    def add(self, kind: str, **fields: object) -> None:
        """Add an event."""
        self._append(encode({"t": round(time.time(), 3), "k": kind, **fields}))

    def log(self, source: object, lines: Sequence[str]) -> None:
        """Add lines of a log."""
        head = '{"t":%.3f,"k":"log","r":%s,"m":' % (time.time(), encode(source))
        for line in lines:
            self._append(head + encode(self._hide(line)) + "}")

    def _append(self, line: str) -> None:
        self._lines.append(line + "\n")
        self.backlog += len(line)

    def flush(self) -> bool:
        """Write what was added; what a full disk refuses stays for the next time."""
        if not self._lines and not self._rest:
            return False
        with self._alone():
            self._write()
        return True

    def _write(self) -> None:
        if self._fresh:
            self._repair()
        data = self._rest + "".join(self._lines).encode("utf-8", "replace")
        self._lines = []
        size = os.fstat(self.fd).st_size
        try:
            written = os.write(self.fd, data)
            whole = data.rfind(b"\n", 0, written) + 1
            if whole < written:
                os.ftruncate(self.fd, size + whole)
            data = data[whole:]
        except OSError as error:
            self.refused = error.strerror or str(error)
        self._rest, self.backlog = data, len(data)

    def _repair(self) -> None:
        # Whoever wrote before may have been killed in the middle of a line.
        self._fresh = False
        size = os.fstat(self.fd).st_size
        block = os.pread(self.fd, SEND_CHUNK, max(0, size - SEND_CHUNK))
        rest = len(block) - block.rfind(b"\n") - 1
        if rest:
            os.ftruncate(self.fd, size - rest)

    def add_unless_ended(self, *records: Tuple[str, Json]) -> bool:
        """Write events, unless someone has written the end, and tell whether they were written."""
        with self._alone():
            if last_record(self.fd).get("k") == "ended":
                return False
            for kind, fields in records:
                self.add(kind, **fields)
            self._write()
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with contextlib.suppress(OSError):  # not every network file system has locks
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self.fd, fcntl.LOCK_UN)


def last_record(fd: int) -> Json:
    """Return the last whole record of a journal."""
    size = os.fstat(fd).st_size
    block = os.pread(fd, SEND_CHUNK, max(0, size - SEND_CHUNK))
    for line in reversed(block.splitlines()):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                return record
    return {}


def events(path: str, until: float = float("inf")) -> Iterator[Json]:
    """Yield the records of a journal up to an offset, log lines left out."""
    read = 0
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            read += len(line)
            if read > until:
                return
            if b',"k":"log",' not in line[:48]:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


# --- Logs ------------------------------------------------------------------------------------

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CLEANING = re.compile(
    "(\x1b\\[[0-9;:]*m)"  # colours stay
    "|\x1b\\[[0-?]*[ -/]*[@-~]"  # cursor movements and the like
    "|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # window titles, links
    "|\x1b[ -/]*[0-~]"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def clean(line: str) -> str:
    """Return the text that a terminal would show of a line, colours included."""
    if not CONTROL.search(line):
        return line
    return CLEANING.sub(r"\1", line.rstrip("\r").rpartition("\r")[2])


class LineBuffer:
    """Bytes in, clean lines out; never cuts inside a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._shown = False
        self._fed = 0.0
        self._progress = 0.0

    def feed(self, data: bytes, now: float) -> List[str]:
        """Return the lines that these bytes complete."""
        self._fed = now
        return self._feed(self._decoder.decode(data), now)

    def _feed(self, text: str, now: float) -> List[str]:
        complete = (self._partial + text).split("\n")
        self._partial = complete.pop()
        if complete and self._shown:
            self._shown = False
            if not complete[0].rstrip("\r"):  # only the end of what was shown
                del complete[0]
        lines = [piece for line in complete for piece in pieces(clean(line))]
        if "\r" in self._partial:
            lines += self._progress_state(now)
        *whole, self._partial = pieces(self._partial)
        return lines + [clean(piece) for piece in whole]

    def _progress_state(self, now: float) -> List[str]:
        head = self._partial.rstrip("\r").rpartition("\r")[0]
        self._partial = self._partial[len(head) + 1 if head else 0 :]
        if not head or now - self._progress < PROGRESS_EVERY:
            return []
        self._progress = now
        return pieces(clean(head))

    def idle(self, now: float) -> List[str]:
        """Return a line that waits for its end, once nothing came for a while."""
        return self._show() if self._partial and now - self._fed > PARTIAL_AFTER else []

    def close(self) -> List[str]:
        """Return what is left at the end of the log."""
        lines = self._feed(self._decoder.decode(b"", final=True), self._fed)
        return lines + (self._show() if self._partial else [])

    def _show(self) -> List[str]:
        line, self._partial, self._shown = clean(self._partial), "", True
        return [line] if line else []


def pieces(line: str) -> List[str]:
    """Return a line cut to pieces that a journal can bear, but not inside a colour."""
    found = []
    while len(line) > LINE_LIMIT:
        escape = line.rfind("\x1b", LINE_LIMIT - 64, LINE_LIMIT)
        at = escape if escape > 0 else LINE_LIMIT
        found.append(line[:at])
        line = line[at:]
    return [*found, line]


def log_end(path: str, hide: Hide) -> List[str]:
    """Return the end of a log."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    if size > TAIL_BYTES and "\n" in text.rstrip("\n"):
        text = text.partition("\n")[2]
    lines = text.rstrip("\n").split("\n") if text else []
    return [hide(clean(line))[:TAIL_WIDTH] for line in lines]


def hider(secrets: Sequence[str]) -> Hide:
    """Return what masks secrets in a line, as they are and as programs quote them."""
    forms = {line for each in secrets for line in (each, *each.splitlines())}
    forms |= {quoted[1:-1] for each in secrets for quoted in (encode(each), repr(each))}
    words = sorted((each for each in forms if len(each) >= SECRET_LENGTH), key=len, reverse=True)
    if not words:
        return str
    pattern = re.compile("|".join(map(re.escape, words)))
    return lambda line: pattern.sub("***", line)


class LogTail:
    """One log file, followed from its start."""

    def __init__(self, path: str, source: object) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.source = source
        self.lines = LineBuffer()
        self.offset = 0

    def read(self, limit: int) -> Tuple[int, List[str]]:
        """Return the number of bytes that were new, and the lines to show."""
        now = time.monotonic()
        data = os.pread(self.fd, limit, self.offset)
        self.offset += len(data)
        return len(data), self.lines.feed(data, now) if data else self.lines.idle(now)

    def unread(self) -> int:
        """Return the number of bytes not read yet."""
        return max(0, os.fstat(self.fd).st_size - self.offset)


class Logs:
    """The logs of a node, poured into its journal up to a limit."""

    def __init__(self, folder: str, journal: Journal) -> None:
        self.folder = folder
        self.journal = journal
        self._tails: List[LogTail] = []
        self._left = LOG_LIMIT
        self.behind = False

    def add(self, name: str, source: object) -> None:
        """Follow one more log."""
        self._tails.append(LogTail(os.path.join(self.folder, f"{name}.log"), source))

    def follow(self) -> bool:
        """Pour in what is new, for a short while, and tell whether anything was."""
        until = time.monotonic() + LOG_SLICE
        self.behind = busy = False
        while self._left > 0 and self.journal.backlog < JOURNAL_BACKLOG and self._round():
            busy = True
            if time.monotonic() > until:
                self.behind = True
                break
        return busy

    def _round(self) -> int:
        read = 0
        chunk = max(LOG_CHUNK // len(self._tails), 4096) if self._tails else 0
        for tail in self._tails:
            size, lines = tail.read(chunk)
            self.journal.log(tail.source, lines)
            read += size
            self._left -= size + LINE_COST * len(lines)
        if self._left <= 0:
            self.journal.add("note", m=f"too much log: from here on it is only in {self.folder}")
        return read

    def finish(self) -> None:
        """Pour in the lines that never got their end, and say how much was left out."""
        for tail in self._tails:
            self.journal.log(tail.source, tail.lines.close())
        left_out = sum(tail.unread() for tail in self._tails)
        if left_out:
            self.journal.add("note", m=f"{left_out} bytes of log are only in {self.folder}")


# --- Evidence --------------------------------------------------------------------------------

TRACEBACK = re.compile(r"(  \+ Exception Group )?Traceback \(most recent call last\):")
CHAINED = re.compile(r"(During handling of|The above exception was the direct cause)")
ASIDE = re.compile(r"Exception (ignored )?in")  # threads and finalizers do not end a program
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ")  # torch.distributed puts it before each line
CHILD_KILLED = re.compile(r"killed by signal: Killed|<Signals\.SIGKILL")
KILLED = re.compile(r"Killed process (\d+)")
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")
OWN_PIDS = "pid:[4026531836]"  # the kernel's first number space, in which its log speaks


def traceback_of(log: Sequence[str]) -> List[str]:
    """Return the last traceback of a log with what led to it, whatever was printed after it."""
    lines = [RANK_PREFIX.sub("", line) for line in log]
    starts = [at for at, line in enumerate(lines) if TRACEBACK.match(line)]
    starts = [at for at in starts if not (at and ASIDE.match(lines[at - 1]))]
    if not starts:
        return []
    first = last = starts.pop()
    while starts and any(map(CHAINED.match, lines[starts[-1] : first])):
        first = starts.pop()
    end = last + 1
    while end < len(lines) and (not lines[end] or lines[end][0] == " "):
        end += 1
    limit = end + MESSAGE_LINES
    while end < min(limit, len(lines)) and lines[end] and lines[end][0] != "[":
        end += 1
    return shortened(lines[first:end])


def shortened(lines: Sequence[str]) -> List[str]:
    """Return lines without their middle if they are too many: both ends of a traceback count."""
    if len(lines) <= TRACE_LINES:
        return list(lines)
    rest = TRACE_LINES - TRACE_HEAD
    return [*lines[:TRACE_HEAD], f"... {len(lines) - TRACE_LINES} lines ...", *lines[-rest:]]


def torch_error(path: str) -> List[str]:
    """Return the traceback in an error file as torch's `record` writes it."""
    message = read_json(path).get("message") or {}
    if not isinstance(message, dict):
        return str(message).splitlines()
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message") or "").splitlines()


class KernelLog:
    """What of interest the kernel has logged since the job began, if this user may read it."""

    def __init__(self) -> None:
        self.lines: List[str] = []
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> List[str]:
        """Return its lines about killed processes and GPUs."""
        record = b"?" if self._fd >= 0 else b""
        while record:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # some records were overwritten before we came
                continue
            except OSError:
                break
            line = record.partition(b";")[2].partition(b"\n")[0].decode("utf-8", "replace")
            if KILLED.search(line) or XID.search(line):
                self.lines.append(line)
        return self.lines


class OomKills:
    """Tells whether the kernel killed a process because memory ran out."""

    def __init__(self, log: KernelLog) -> None:
        self.log = log
        self.folder = memory_cgroup()
        self._before = self._last = self.count()
        self._noted = time.monotonic()

    def count(self) -> int:
        """Return how many processes were killed in our cgroup, or on the host, up to now."""
        counters = ("memory.events.local", "memory.events", "memory.oom_control")
        for path in (*(os.path.join(self.folder, each) for each in counters), "/proc/vmstat"):
            match = re.search(r"^oom_kill (\d+)", read_text(path), re.MULTILINE)
            if match:
                return int(match.group(1))
        return 0

    def note(self) -> None:
        """Forget kills that are too old to be why a process ends now."""
        if time.monotonic() > self._noted + OOM_WINDOW:
            self._before, self._last, self._noted = self._last, self.count(), time.monotonic()

    def evidence(self, pid: Optional[int]) -> List[str]:
        """Return what shows that a process was killed so, nothing if it was not.

        :param pid: None: a child of the process may have been killed in its place
        """
        told = [line for line in self.log.read() if KILLED.search(line)]
        if told and pid and link_of("/proc/self/ns/pid") == OWN_PIDS:
            # The log names them all: a kill of another job in this cgroup is not ours.
            told = [line for line in told if pid in map(int, KILLED.findall(line))]
            return [*told, memory_limit(self.folder)] if told else []
        if self.count() <= self._before:
            return []
        self._before += 1  # each kill explains one end
        return [memory_limit(self.folder)]


def link_of(path: str) -> str:
    """Return what a link says, empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def memory_cgroup() -> str:
    """Return the folder of our cgroup that counts memory, "" where none can be seen."""
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            base = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
            # In a container the path may be the host's, and our own cgroup the topmost to be seen.
            for folder in (base + path, base):
                if any(os.path.exists(f"{folder}/memory.{x}") for x in ("events", "oom_control")):
                    return folder.rstrip("/")
    return ""


def memory_limit(folder: str) -> str:
    """Return in words how much memory there is: the least limit of a cgroup and those around it."""
    limits = []
    while folder.startswith("/sys/fs/cgroup"):
        for limit, peak in (
            ("memory.max", "memory.peak"),
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        ):
            size = read_text(os.path.join(folder, limit)).strip()
            if size.isdigit() and int(size) < 1 << 60:  # else none
                used = read_text(os.path.join(folder, peak)).strip()
                limits.append((int(size), used, folder))
        folder = os.path.dirname(folder)
    if not limits:
        total = re.search(r"MemTotal: *(\d+)", read_text("/proc/meminfo"))
        return f"the host has {int(total.group(1)) >> 10 if total else '?'} MiB of memory"
    least, used, folder = min(limits)
    most = f", of which up to {int(used) >> 20} MiB were used" if used.isdigit() else ""
    return f"the memory limit is {least >> 20} MiB (cgroup {folder}){most}"


def gpu_health() -> Dict[str, Dict[str, str]]:
    """Return the place and the errors of each GPU, as far as its driver knows of them."""
    health: Dict[str, Dict[str, str]] = {}
    for query, names in (
        ("--query-gpu=uuid,pci.bus_id", ("at",)),
        ("--query-gpu=uuid,ecc.errors.uncorrected.volatile.total", ("uncorrected ECC errors",)),
        ("--query-gpu=uuid,retired_pages.pending", ("page retirement pending",)),
        (
            "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure",
            ("row remapping pending", "row remapping failed"),
        ),
    ):
        for uuid, *cells in nvidia_smi(query):
            told = dict(zip(names, cells))  # noqa: B905 - Python 3.8 has no strict
            health.setdefault(uuid, {}).update(told)
        if not health:  # absent, or it hangs: once is enough
            break
    return health


def gpu_faults(gpus: Sequence[str], before: Json, log: KernelLog) -> List[Json]:
    """Return what befell GPUs since the job began: Xid messages, new errors, disappearance."""
    now = gpu_health()
    found: List[Json] = []
    places = {bus_place((before.get(gpu) or now.get(gpu) or {}).get("at", "")): gpu for gpu in gpus}
    for line in log.read():
        match = XID.search(line)
        if match and bus_place(match.group(1)) in places:
            gpu = places[bus_place(match.group(1))]
            found.append({"gpu": gpu, "m": line, "hardware": int(match.group(2)) in HARDWARE_XIDS})
    for gpu in filter(before.get, gpus):
        new = [
            f"{name}: {value}"
            for name, value in now.get(gpu, {}).items()
            if before[gpu].get(name, value) != value
        ]
        gone = [] if gpu in now else ["nvidia-smi does not list it any more"]
        found += [{"gpu": gpu, "m": f"{gpu}: {each}", "hardware": True} for each in new + gone]
    return found


def bus_place(text: str) -> Tuple[int, ...]:
    """Return domain, bus and device of a PCI address, however many digits are written."""
    return tuple(int(part, 16) for part in re.findall("[0-9A-Fa-f]+", text))[:3]


# --- Node ------------------------------------------------------------------------------------


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

    def agents(self) -> List[Process]:
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

    def ended(self) -> Optional[Json]:
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

    def connect(self) -> Optional[socket.socket]:
        """Return a connection to the supervisor, None if it does not live."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.chdir(self.path)
            link.connect("socket")
        except OSError:
            link.close()
            return None
        return link

    def ask(self, message: Json, timeout: Optional[float] = None) -> Optional[Json]:
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


def root_of(request: Json) -> str:
    """Return the folder under which everything of ours on this host lies."""
    root = request.get("root") or "~/.distributed_training"
    return os.path.abspath(os.path.expanduser(root))


def sources_of(root: str) -> str:
    """Return the folder of the source snapshots."""
    return os.path.join(root, "sources")


def source_path(root: str, sha: str) -> str:
    """Return the path of a source snapshot."""
    if not re.fullmatch(r"[0-9a-f]{64}", str(sha)):
        raise Refusal("bad_request", f"not a SHA-256: {sha!r}")
    return os.path.join(sources_of(root), f"{sha}.tar")


# --- Preflight -------------------------------------------------------------------------------


class Preflight:
    """What must hold on a host before any rank starts."""

    def __init__(self, node: Node, request: Json) -> None:
        self.node = node
        self.request = request
        self.work = node.at("work")
        self.env = scrubbed(request.get("scrub") or ())
        self.env.update(request.get("setup_env") or {})
        self.env.update(own_variables(node))

    def problems(self) -> List[Json]:
        """Return everything that does not hold, all at once.

        The head is reached for only if nothing else is wrong: where it fails, its own findings
        must not be the only ones that are told.
        """
        found = self._run((self.source, self.occupied, logind))
        setup = self.request.get("setup")
        if not setup:
            found += self.program()
        found = found or self._run((self.reach,))
        if found or not setup:
            return found
        # What the setup would have made cannot be missed if it never ran or failed.
        return self._run((self.setup,)) or self.program()

    def versions(self) -> Json:
        """Return what the ranks' interpreter has."""
        python = self.request.get("python")
        return versions(python, self.env, self.work) if python else {}

    def program(self) -> List[Json]:
        """Look for what the ranks are to run."""
        files = map(self.file, self.request.get("check_files") or ())
        return self._run((self.python,)) + [each for each in files if each]

    @staticmethod
    def _run(checks: Sequence[Check]) -> List[Json]:
        return [found for found in (check() for check in checks) if found]

    def source(self) -> Optional[Json]:
        """Unpack the source into the working directory."""
        sha = self.request.get("source")
        try:
            if sha:
                unpack(source_path(self.node.root, sha), self.work)
            os.makedirs(os.path.join(self.work, "outputs"), 0o700, exist_ok=True)
        except FileNotFoundError:
            return problem(
                f"source {sha} is not on this host", "it was never sent", "send it again"
            )
        except (OSError, EOFError, ValueError) as error:
            do = "free space there, or set work_dir to another folder"
            return problem(f"cannot unpack the source into {self.work}", str(error), do)
        return None

    def reach(self) -> Optional[Json]:
        """Connect to the head, which listens since it has its port."""
        if not self.request.get("reach"):
            return None
        address, port = self.request["reach"]
        until = time.monotonic() + REACH_TIMEOUT
        why = "timed out"
        while time.monotonic() < until:
            try:
                knock(address, port, until - time.monotonic())
                return None
            except ConnectionRefusedError as error:
                why = str(error.strerror)
                time.sleep(0.1)
            except OSError as error:
                why = error.strerror or str(error)
                break
        do = "give the head an address= that this host reaches, or open its firewall"
        return problem(f"cannot reach the head at {address} port {port}", why, do)

    def occupied(self) -> Optional[Json]:
        """Look for processes of nobody's job on the wanted GPUs, once the last job's are gone."""
        wanted = {name[4:] for name in self.request.get("slots") or () if name.startswith("gpu-")}
        until = time.monotonic() + GPU_RELEASE_TIMEOUT
        strangers = gpu_processes(wanted)
        while not any(map(Process.find, strangers)) and time.monotonic() < until:
            if not strangers and not gpu_memory_held(wanted):
                return None
            time.sleep(0.5)
            strangers = gpu_processes(wanted)
        if not strangers:  # memory of no process may be the display's
            return None
        return in_use(strangers)

    def setup(self) -> Optional[Json]:
        """Run the setup script, by bash as a command that is given as text."""
        log = self.node.at("logs", "setup.log")
        argv = ["bash", "-c", self.request["setup"]]
        try:
            pid = spawn(argv, self.env, self.work, log)
        except OSError as error:
            why, do = f"bash cannot be executed: {error.strerror}", "install bash on this host"
            large = too_large(argv, self.env, error)
            return problem("the setup script cannot run", *(large or (why, do)))
        code, name = exit_of(os.waitpid(pid, 0)[1])
        if code == 0:
            return None
        tail = log_end(log, self.node.hide)[-TAIL_LINES:]
        why = "\n".join([f"it ended with {name or f'exit code {code}'}; its last lines:", *tail])
        return problem("the setup script failed", why, "correct it")

    def python(self) -> Optional[Json]:
        """Find the interpreter of the ranks."""
        import shutil

        python = self.request.get("python")
        if not python:
            return None
        path = os.path.join(self.work, python) if "/" in python else python
        if shutil.which(path, path=self.env.get("PATH", os.defpath)):
            return None
        why = "it exists but may not be executed" if os.path.exists(path) else "there is none"
        do = "set python= to an interpreter of this host, or install it"
        return problem(f"python {python} cannot be run", why, do)

    def file(self, name: str) -> Optional[Json]:
        """Find a file that the ranks need."""
        path = os.path.join(self.work, name)
        if not os.path.exists(path):
            do = "check its name, and that source_dir holds it and does not ignore it"
            if os.path.isabs(name):
                do = "check its name, and that this host has it; it is sent if it is in source_dir"
            return problem(f"{name} is missing", f"there is no {path}", do)
        if not os.access(path, os.R_OK):
            return problem(
                f"{name} cannot be read", f"permission denied for {user_name()}", "chmod it"
            )
        if os.stat(path).st_mode & 0o100 and os.statvfs(path).f_flag & os.ST_NOEXEC:
            do = "set work_dir to a folder on a file system that allows programs"
            return problem(
                f"{name} cannot be run", f"{path} is on a file system mounted noexec", do
            )
        return None


def gpu_processes(uuids: Set[str]) -> List[int]:
    """Return the processes that compute on any of these GPUs."""
    rows = nvidia_smi("--query-compute-apps=gpu_uuid,pid") if uuids else []
    return sorted(int(pid) for uuid, pid, *_ in rows if uuid in uuids and pid.isdigit())


def gpu_memory_held(uuids: Set[str]) -> bool:
    """Tell whether any of these GPUs has more memory in use than a driver or a display takes."""
    rows = nvidia_smi("--query-gpu=uuid,memory.used,memory.total") if uuids else []
    return any(
        int(used) > max(1024, int(total) // 20)
        for uuid, used, total, *_ in rows
        if uuid in uuids and used.isdigit() and total.isdigit()
    )


def process_user(pid: int) -> str:
    """Return the user of a process."""
    with contextlib.suppress(OSError):
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    return "unknown"


def knock(address: str, port: int, timeout: float) -> None:
    """Connect and leave without a trace: a reset leaves no waiting socket on either side."""
    with socket.create_connection((address, port), timeout=timeout) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def unpack(archive: str, work: str) -> None:
    """Unpack a source snapshot as this user's own files."""
    import tarfile

    os.utime(archive)  # gc counts from the last use
    with tarfile.open(archive) as tar:
        # The caller may run any program here anyway, and the snapshot's own modes must survive.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        members = tar.getmembers()
        for member in members:
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        tar.extractall(work, members)


def own_variables(node: Node) -> Dict[str, str]:
    """Return the variables by which processes find their node, and the agent its processes."""
    return {"DT_NODE_DIR": node.path, "DT_JOB_MARK": node.mark}


# --- Ranks -----------------------------------------------------------------------------------


class Started:
    """One process that the supervisor started: a rank, or what launches ranks."""

    def __init__(self, name: str, rank: Optional[int], pid: int) -> None:
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
        self.started: Dict[int, Started] = {}
        self.expected: Set[int] = set()
        self.begun: Set[int] = set()
        self.done: Set[int] = set()
        self.start_by = 0.0
        self.failed = False
        self.by_us = False
        self._last_done = 0.0
        self._records: Dict[str, int] = {}
        self.kernel = KernelLog()
        self.oom_kills = OomKills(self.kernel)

    def start(self, request: Json, keep: Sequence[int]) -> Dict[str, int]:
        """Start all processes, or raise Refusal at the first that cannot be."""
        base = scrubbed(request.get("scrub") or ())
        self.expected = set(request.get("ranks") or ())
        self.start_by = time.monotonic() + float(request.get("start_timeout") or START_TIMEOUT)
        commands = [self._command(each, base) for each in request["processes"]]
        for name, rank, argv, env in commands:
            log = self.node.at("logs", f"{name}.log")
            try:
                pid = spawn(argv, env, self.node.at("work"), log, keep)
            except (OSError, IndexError, TypeError, ValueError) as error:
                raise exec_failed(name, argv, env, error) from error
            set_oom_score(str(pid), 0)
            self.started[pid] = Started(name, rank, pid)
        for process in self.started.values():
            self._began(process.name, process.rank, process.pid)
        return {process.name: pid for pid, process in self.started.items()}

    def _command(self, process: Json, base: Dict[str, str]) -> Command:
        errors = self.node.at("ranks", f"{process['rank']}.error")
        env = {
            **(process.get("defaults") or {}),
            **base,
            **({} if process["rank"] is None else {"TORCHELASTIC_ERROR_FILE": errors}),
            **process["env"],
            **own_variables(self.node),
        }
        site = self.node.at("site")
        if os.path.isdir(site):  # what stands first there runs before the rank's program
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (site, env.get("PYTHONPATH"))))
        return process["name"], process["rank"], process["argv"], env

    def _began(self, name: str, rank: Optional[int], pid: int) -> None:
        self.journal.add("started", name=name, rank=rank, pid=pid)
        if rank is not None:
            self.begun.add(rank)

    def logs(self) -> Iterator[Tuple[str, Optional[int]]]:
        """Yield the name and the rank of each log that there is or will be."""
        for process in self.started.values():
            yield process.name, process.rank
        for rank in self.expected - {process.rank for process in self.started.values()}:
            yield f"rank-{rank}", rank

    def reap(self) -> None:
        """Record who has ended; orphans that became ours are only buried."""
        for pid, status in reaped():
            process = self.started.get(pid)
            if process and not process.ended:
                process.ended = True
                elapsed = time.monotonic() - process.began
                self._exit(exit_record(process.name, process.rank, pid, status, elapsed))

    def read_records(self) -> None:
        """Take over what `agent rank` wrote about the ranks below a launcher."""
        for entry in os.scandir(self.node.at("ranks")):
            inode = entry.inode()  # each record replaces the file
            if entry.name.endswith(".json") and self._records.get(entry.name) != inode:
                record = read_json(entry.path)
                if entry.name not in self._records:
                    self._began(record["name"], record["rank"], record["pid"])
                self._records[entry.name] = inode
                if "elapsed" in record:
                    self._exit(record)

    def _exit(self, record: Json) -> None:
        story = exit_story(self.node, record)
        evidence = [] if self.by_us else self._memory(record, story["tail"])
        self.journal.add(
            "exit", **record, **story, by_us=self.by_us, oom=bool(evidence), evidence=evidence
        )
        if record["rank"] is not None and record["code"] == 0:
            self.done.add(record["rank"])
            self._last_done = time.monotonic()
        elif record["rank"] is not None or not self.expected:
            self.failed = self.failed or record["code"] != 0

    def _memory(self, record: Json, tail: Sequence[str]) -> List[str]:
        """Return what shows that memory ran out, if that is why a process ended."""
        if record["signal"] == "SIGKILL":
            return self.oom_kills.evidence(record["pid"])
        child = record["code"] == 137 or (record["code"] and any(map(CHILD_KILLED.search, tail)))
        return self.oom_kills.evidence(None) if child else []

    def outcome(self, grace: float) -> Optional[Tuple[str, str]]:
        """Return why it is over and how it went, as soon as that is certain."""
        if not self.started:
            return None
        if self.failed:
            return "rank failed", "failed"
        ended = [each.ended for each in self.started.values() if each.rank is None]
        missing = self.expected - self.done
        if missing and any(ended):
            return f"the launcher ended, but {numbered(missing)} did not succeed", "failed"
        if missing or not self.expected:
            return self._waiting(missing)
        lingers = not all(ended) and time.monotonic() < self._last_done + grace
        return None if lingers else ("ranks done", "success")

    def _waiting(self, missing: Set[int]) -> Optional[Tuple[str, str]]:
        if all(each.ended for each in self.started.values()):
            return "ranks done", "failed" if missing else "success"
        late = self.expected - self.begun
        if late and time.monotonic() > self.start_by:
            return f"{numbered(late)} did not start in time (start_timeout)", "failed"
        return None


def exit_story(node: Node, record: Json) -> Json:
    """Return what a process left to say about its end."""
    told = record.pop("traceback", None)
    if record["code"] == 0:
        return {"tail": [], "traceback": [], "nccl": []}
    lines = log_end(node.at("logs", f"{record['name']}.log"), node.hide)
    error = told or torch_error(node.at("ranks", f"{record['rank']}.error"))
    trace = [node.hide(clean(line))[:TAIL_WIDTH] for line in shortened(error)]
    return {
        "tail": lines[-TAIL_LINES:],
        "traceback": trace or traceback_of(lines),
        "nccl": [line for line in lines if "NCCL WARN" in line][-WARNING_LINES:],
    }


def numbered(ranks: Set[int]) -> str:
    """Return ranks in words."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def exec_failed(name: str, argv: Sequence[str], env: Dict[str, str], error: Exception) -> Refusal:
    """Return the refusal for a program that cannot be executed."""
    do = "give its path on this host, executable and on a file system that allows programs"
    why, do = too_large(argv, env, error) or (getattr(error, "strerror", None) or str(error), do)
    message = f"{name}: cannot execute {argv[0] if argv else '(nothing)'}: {why}; {do}"
    return Refusal("exec_failed", message, name=name)


def too_large(
    argv: Sequence[str], env: Dict[str, str], error: Exception
) -> Optional[Tuple[str, str]]:
    """Return what is larger than execve(2) allows, if that is the error, and what to do."""
    if getattr(error, "errno", None) != errno.E2BIG:
        return None
    sizes = {f"argument {n}": len(os.fsencode(word)) for n, word in enumerate(argv)}
    sizes.update((f"variable {name}", len(os.fsencode(text))) for name, text in env.items())
    largest = max(sizes, key=sizes.__getitem__)
    one, all_of_it = 32 * os.sysconf("SC_PAGE_SIZE") >> 10, os.sysconf("SC_ARG_MAX") >> 10
    why = (
        f"arguments and variables have {sum(sizes.values()) >> 10} KiB, {largest} alone has "
        f"{sizes[largest] >> 10}; Linux allows {all_of_it} KiB, and {one} for each"
    )
    return why, "put what is large into a file in source_dir"


# --- Supervisor ------------------------------------------------------------------------------


class Client:
    """One connection to the supervisor's socket."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.link = link
        self.watches = False
        self._received = b""

    def messages(self) -> Optional[List[Json]]:
        """Return the messages that have come whole, None once the client is gone."""
        try:
            data = self.link.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None

    def reply(self, record: Json) -> None:
        """Answer."""
        with contextlib.suppress(OSError):
            self.link.settimeout(1)
            self.link.sendall(encode(record).encode("utf-8", "replace") + b"\n")
            self.link.setblocking(False)

    def poke(self) -> None:
        """Tell a watcher that the journal has grown; one that has not noticed yet needs no more."""
        with contextlib.suppress(OSError):
            self.link.send(b".")


class Desk:
    """The supervisor's socket and who is connected to it."""

    def __init__(self, server: socket.socket) -> None:
        server.setblocking(False)
        self.server = server
        self.clients: List[Client] = []

    def fds(self) -> List[int]:
        """Return the descriptors to wait for."""
        return [self.server.fileno(), *(client.link.fileno() for client in self.clients)]

    def messages(self) -> Iterator[Tuple[Client, Json]]:
        """Yield what clients have sent."""
        with contextlib.suppress(OSError):
            while True:
                self.clients.append(Client(self.server.accept()[0]))
        for client in list(self.clients):
            messages = client.messages()
            if messages is None:
                client.link.close()
                self.clients.remove(client)
                messages = [{"verb": "gone"}]
            for message in messages:
                yield client, message

    def poke(self) -> None:
        """Tell all watchers that the journal has grown."""
        for client in self.clients:
            if client.watches:
                client.poke()


class Wakeups:
    """Signals to this process, as bytes in a pipe that can be waited for."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def read(self) -> Set[int]:
        """Return the signals that came, children's ends left out."""
        with contextlib.suppress(BlockingIOError):
            return set(os.read(self.fd, 4096)) - {signal.SIGCHLD}
        return set()

    @staticmethod
    def forget() -> None:
        """Give a forked child the signals of an ordinary program."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)


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
        self.logs = Logs(node.at("logs"), self.journal)
        self.gang = Gang(node, self.journal)
        self.gpus = [name[4:] for name in request.get("slots") or () if name.startswith("gpu-")]
        self.gpu_health: Json = {}
        self.grace = float(request.get("grace_period", 30))
        self.stop_signal = str(request.get("stop_signal") or "SIGTERM")
        self.locks: List[Lock] = []
        self.listener: Optional[socket.socket] = None
        self.checker: Optional[Client] = None
        self.prepared = False
        self.versions: Json = {}
        self.pids: Dict[str, int] = {}
        self.refusal: Optional[Refusal] = None
        self.ending: Optional[Ending] = None
        self.reason = self.state = ""
        self.waiting: List[Client] = []  # who asked for prepare
        self.farewells: List[Tuple[Client, Json]] = []
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
        noted = ("label", "slots", "port", "stop_signal", "grace_period", "keep_days")
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
        self.reserve()
        if self.request.get("setup"):
            self.logs.add("setup", "setup")
        self.check()

    def reserve(self) -> None:
        """Take the slots, and the port until the ranks start."""
        label = self.request.get("label")
        holder = {**self.node.key, "label": label, "user": user_name(), "since": time.time()}
        ticket = Ticket.of(self.request)
        if ticket:
            ticket.leave()
        self.locks = take_all(self.request.get("slots") or (), holder, claimed_slots(ticket))
        port = self.request.get("port")
        if port is None:
            return
        lock = Lock.take(f"port-{port}", holder)
        if lock is None:
            raise port_taken(port)
        self.locks.append(lock)
        try:
            self.listener = listen(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise port_taken(port) from error
            why = f"{user_name()} cannot listen there: {error.strerror}"
            do = "set master_port= to another, above 1023, or leave it out"
            raise preflight_failed([problem(f"port {port} cannot be used", why, do)]) from error

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
        self.gang.read_records()
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
            for lock in self.locks:
                lock.refresh()
        return over

    def wait(self) -> Set[int]:
        """Wait for a signal, a message or the time to look at the logs, and return the signals."""
        poll = select.poll()
        for fd in [self.wakeups.fd, *self.desk.fds()]:
            poll.register(fd, select.POLLIN)
        last_look = self.ending is not None and not self.ending.survivors
        active = last_look or time.monotonic() - self.active < 1
        seconds = 0 if self.logs.behind else ACTIVE_POLL if active else IDLE_POLL
        poll.poll(1000 * seconds)
        return self.wakeups.read()

    def judge(self, signals: Set[int]) -> None:
        """Begin the end if there is a reason."""
        if self.ending:
            return
        timeout = self.request.get("orphan_timeout")
        outcome = self.gang.outcome(self.grace)
        if outcome:
            self.end(*outcome)
        elif signals:
            self.end(f"stopped: the agent received {signal_name(min(signals))}", "stopped")
        elif os.getppid() != self.watchdog:
            self.end("agent lost", "lost")
        elif timeout is not None and time.monotonic() - self.renewed > timeout:
            self.end("orphaned", "stopped")

    def end(self, reason: str, state: str, grace: Optional[float] = None) -> None:
        """Begin the end; the first reason counts."""
        if self.ending:
            return
        self.reason, self.state, self.active = reason, state, time.monotonic()
        self.journal.add("ending", reason=reason, signal=self.stop_signal)
        self.ending = Ending(
            Members(self.node.mark, self.agents),
            signal.Signals[self.stop_signal],
            self.grace if grace is None else grace,
        )

    def finish(self) -> None:
        """Write the last line, give everything back and answer whoever waits for that."""
        self.logs.finish()
        self.note_full_disk()
        survivors = self.ending.survivors if self.ending else []
        leave_no_shm(self.since)
        failed = self.gpus and self.gang.failed  # else nobody asks how the GPUs are
        faults = gpu_faults(self.gpus, self.gpu_health, self.gang.kernel) if failed else []
        if any(fault["hardware"] for fault in faults):
            note_fault(f"under job {self.node.key['job']}, {faults[0]['m']}")
        end = {"state": self.state, "reason": self.reason, "survivors": survivors}
        self.journal.add("ended", **end, gpu_faults=faults)
        until = time.monotonic() + (0 if self.refusal else JOURNAL_TIMEOUT)
        while self.journal.flush() and self.journal.backlog and time.monotonic() < until:
            time.sleep(0.5)
        self.desk.poke()
        if self.refusal:
            self.hear_caller()
            self.node.remove()
        self.release_port()
        for lock in self.locks:
            lock.release(remove=not survivors)
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
        if self.pids:
            client.reply({"ok": True, "pids": self.pids, "already": True})
            return
        if self.ending or not self.prepared:
            raise Refusal("not_prepared", f"cannot start: {self.reason or 'still preparing'}")
        self.release_port()
        try:
            self.pids = self.gang.start(message, [lock.fd for lock in self.locks])
        except Refusal as refusal:
            self.farewells.append((client, refusal.reply))
            self.end(f"exec failed: {refusal}", "failed", grace=0)
            return
        ticket = Ticket.of(self.request)
        if ticket:
            ticket.withdraw()
        for name, rank in self.gang.logs():
            self.logs.add(name, name if rank is None else rank)
        self.active = time.monotonic()
        client.reply({"ok": True, "pids": self.pids})

    def release_port(self) -> None:
        """Leave the port to the rank that will listen on it."""
        if self.listener:
            self.listener.close()
            self.listener = None

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


# --- Watchdog --------------------------------------------------------------------------------


def watchdog(node: Node, request: Json, server: socket.socket) -> None:
    """Run the supervisor, and end what it leaves behind if it dies."""
    become_reaper()
    set_oom_score("self", -900)
    supervisor = fork(lambda: supervise(node, request, server))
    server.close()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor has them too, and ends in good order
    pid, status = os.wait()
    while pid != supervisor:
        pid, status = os.wait()
    if status != 0:
        code, name = exit_of(status)
        take_over(node, f"its supervisor was killed by {name}" if name else f"exit code {code}")


def supervise(node: Node, request: Json, server: socket.socket) -> None:
    """Run the supervisor in a session of its own."""
    os.setsid()
    Supervisor(node, request, server).run()


def take_over(node: Node, why: str) -> None:
    """End what is left of a job whose supervisor is gone."""
    state = node.state()
    journal = Journal(node.journal)
    stop_signal = state.get("stop_signal") or "SIGTERM"
    ending_record = {"reason": "agent lost", "signal": stop_signal}
    if not journal.add_unless_ended(("ending", ending_record)):
        return
    here = Process.find(os.getpid())
    members = Members(node.mark, [here] if here else [])
    ending = Ending(members, signal.Signals[stop_signal], float(state.get("grace_period") or 0))
    statuses: Dict[int, int] = {}
    while not ending.step():
        statuses.update(reaped())
        time.sleep(ACTIVE_POLL)
    statuses.update(reaped())
    leave_no_shm(float(state.get("since") or time.time()))
    exits = [lost_exit(node, event, statuses.get(event["pid"])) for event in unfinished(node)]
    note = {"m": f"the last lines of the ranks may only be in {node.at('logs')}"}
    end = {"state": "lost", "reason": f"agent lost: {why}", "survivors": ending.survivors}
    # At once, since two calls that find the agents gone may both be here.
    journal.add_unless_ended(*(("exit", each) for each in exits), ("note", note), ("ended", end))


def unfinished(node: Node) -> List[Json]:
    """Return the started records of a journal that have no exit record."""
    running: Dict[str, Json] = {}
    for event in events(node.journal):
        if event.get("k") == "started":
            running[event["name"]] = event
        elif event.get("k") == "exit":
            running.pop(event["name"], None)
    return list(running.values())


def lost_exit(node: Node, event: Json, status: Optional[int]) -> Json:
    """Return the exit record of a process whose supervisor did not see its end."""
    elapsed = time.time() - event["t"]
    record = exit_record(event["name"], event["rank"], event["pid"], status, elapsed)
    if node.state().get("secrets") and node.hide is str:  # they went with the supervisor
        untold = {"tail": ["(left out, since it may hold secrets)"], "traceback": [], "nccl": []}
        return {**record, **untold, "by_us": True, "oom": False}
    return {**record, **exit_story(node, record), "by_us": True, "oom": False}


def tend(node: Node) -> None:
    """Let a new process end what killed agents have left behind."""
    # In this order: agents note who they are after they are made, and write the end before they go.
    if node.unborn() or node.agents() or node.over():
        return
    why = "the host was restarted" if node.restarted() else "both its agents were killed"
    if node.restarted():
        note_fault(f"it was restarted while job {node.key['job']} ran on it")
    detach(lambda: take_over(node, why), node.at("agent.log"))


# --- Attach ----------------------------------------------------------------------------------


class Watch:
    """A client that follows a journal: lines go out, acknowledgements and renewals come in."""

    def __init__(
        self,
        node: Node,
        journal: int,
        offset: int,
        received: bytes,
        owner: str = "",
        renews: bool = True,
    ) -> None:
        self.node = node
        self.owner = owner
        self.renews = renews
        self.journal = journal
        self.offset = offset
        self.link = node.connect()
        self.ended = False
        self._outgoing = b""
        self._received = received
        self._heard = self._spoke = time.monotonic()
        self._tended = False
        if self.link:
            self.link.setblocking(False)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self._tell(encode({"verb": "watch", "renews": renews}).encode() + b"\n")

    def run(self) -> None:
        """Serve the client until it goes, falls silent, is replaced or has the last line."""
        while self._outgoing or not self.ended:
            ready = self._wait()
            if not self._listen(ready) or time.monotonic() - self._heard > CLIENT_TIMEOUT:
                return
            if self.owner and self.owner != read_text(self.node.at("owner")):
                return
            self._follow(ready)
            self._send()

    def _wait(self) -> Dict[int, int]:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(1, select.POLLOUT if self._outgoing else 0)
        if self.link:
            poll.register(self.link, select.POLLIN)
        return dict(poll.poll(1000 if self.link else 100))

    def _listen(self, ready: Dict[int, int]) -> bool:
        gone = bool(ready.get(1, 0) & (select.POLLERR | select.POLLHUP))
        if 0 in ready or gone:  # the last acknowledgement may have come with the end
            with contextlib.suppress(BlockingIOError):
                data = os.read(0, 1 << 16)
                gone = gone or not data
                self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._heard = time.monotonic()
            if self.owner:
                with contextlib.suppress(OSError):
                    os.utime(self.node.at("owner"))
            self._obey(line)
        return not gone

    def _obey(self, line: bytes) -> None:
        if re.fullmatch(rb"ack \d+", line):
            with contextlib.suppress(OSError):  # a full disk: the next watcher reads lines again
                write_whole(self.node.at("acknowledged"), line[4:])
        if self.renews:
            self._tell(b'{"verb":"renew"}\n')

    def _tell(self, message: bytes) -> None:
        if self.link:
            with contextlib.suppress(OSError):
                self.link.sendall(message)

    def _follow(self, ready: Dict[int, int]) -> None:
        if self.link and self.link.fileno() in ready:
            if not self._poked():
                self.link.close()
                self.link = None
        elif not self.link and not self._tended and not self.node.agents():
            self._tended = True
            tend(self.node)
        self._fill()
        now = time.monotonic()
        if now - self._spoke > ALIVE_EVERY and not self._outgoing:
            self._outgoing += b'{"k":"alive","output":%d}\n' % self.node.output()

    def _poked(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.link and self.link.recv(4096))
        return False

    def _fill(self) -> None:
        size = SEND_CHUNK
        while len(self._outgoing) < SEND_CHUNK:
            data = os.pread(self.journal, size, self.offset)
            whole = data.rfind(b"\n") + 1
            if not whole and len(data) < size:
                return
            size *= 1 if whole else 2
            self.offset += whole
            self._outgoing += data[:whole]
            # Quotation marks in a string are escaped, so this is nothing that a rank has printed.
            self.ended = self.ended or b'"k":"ended"' in data[:whole]

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if self._outgoing:
                sent = os.write(1, self._outgoing[:SEND_CHUNK])
                self._outgoing = self._outgoing[sent:]
                self._spoke = time.monotonic()


# --- Stacks ----------------------------------------------------------------------------------


class Witness:
    """A process of a rank, which can be asked for its stacks if our sitecustomize ran in it.

    Then it holds a file open for them, and lives through our signal. Anything else would be killed
    by it: what runs no Python, or Python without that file, or a program that replaced it.
    """

    def __init__(self, process: Process, site: str) -> None:
        self.process = process
        # Not its arguments: they may hold secrets, and this goes into logs.
        self.command = read_text(f"/proc/{process.pid}/comm").strip()
        self.state, caught = condition(process.pid)
        self.fd = self._file(os.path.join(site, "stacks-")) if caught else None
        self.file = os.fstat(self.fd).st_ino if self.fd is not None else None
        self.text = ""
        self.by: Optional[str] = None
        self._begin: Optional[int] = None
        self._size = 0
        self._grew = 0.0

    def _file(self, prefix: str) -> Optional[int]:
        folder = f"/proc/{self.process.pid}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if os.readlink(path).startswith(prefix):
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return None

    def answered(self) -> bool:
        """Ask, and tell whether the answer is there."""
        assert self.fd is not None
        size, now = os.fstat(self.fd).st_size, time.monotonic()
        if self._begin is None:
            self._begin = self._size = size
            self.process.send(STACKS_SIGNAL)
        elif size > self._size:
            self._size, self._grew = size, now
        elif size > self._begin and now > self._grew + STACKS_PAUSE:
            text = os.pread(self.fd, STACKS_LIMIT, self._begin).decode("utf-8", "replace")
            self.text, self.by = text, "faulthandler"
        return bool(self.text) or not self.process.alive()

    def told(self) -> Json:
        """Return what is known of the process."""
        known = {"pid": self.process.pid, "command": self.command, "state": self.state}
        return {**known, "by": self.by, "text": self.text[:STACKS_SHOWN]}


def condition(pid: int) -> Tuple[str, bool]:
    """Return what a process waits for in the kernel, and whether it catches our signal."""
    text = read_text(f"/proc/{pid}/status")
    fields = dict(re.findall(r"^(State|SigCgt):\s*(.*)$", text, re.MULTILINE))
    place = read_text(f"/proc/{pid}/wchan")
    state = fields.get("State", "gone") + (f" in {place}" if place.strip("0") else "")
    return state, bool(int(fields.get("SigCgt", "0"), 16) >> (STACKS_SIGNAL - 1) & 1)


def witnesses_of(node: Node, pid: int) -> List[Witness]:
    """Return a rank's processes, its first one and those below it, oldest first."""
    table = process_table()
    below = Members.descendants(table, {pid}) | ({pid} & table.keys())
    processes = sorted((table[each] for each in below), key=lambda process: process.start)
    return [Witness(process, os.path.realpath(node.at("site"))) for process in processes]


def question(witnesses: Sequence[Witness], until: float) -> None:
    """Let all processes write their stacks; forked ones share a file and do so in turn."""
    waiting: Dict[Optional[int], List[Witness]] = {}
    for each in witnesses:
        if each.fd is not None:
            waiting.setdefault(each.file, []).append(each)
    while waiting and time.monotonic() < until:
        for file, queue in list(waiting.items()):
            if queue[0].answered() and not (queue.pop(0) and queue):
                del waiting[file]
        time.sleep(0.02)


def spy(witness: Witness) -> None:
    """Let py-spy look into a process that says nothing, where it is installed and may."""
    import shutil
    import subprocess

    program = shutil.which("py-spy", path=os.environ.get("PATH", "") + ":/usr/local/bin")
    if program and not witness.text:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [program, "dump", "--full-filenames", "--pid", str(witness.process.pid)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5)
            threads = done.stdout.decode("utf-8", "replace").partition("\nThread ")
            witness.text = "".join(threads[1:]).lstrip()  # what stands before are the arguments
            witness.by = "py-spy" if witness.text else None


def ask_recorders(node: Node) -> int:
    """Let NCCL's flight recorders write what they have, and return how many will."""
    import glob

    asked = 0
    for path in glob.glob(os.path.join(glob.escape(node.at("site")), "nccl-*.pipe")):
        with contextlib.suppress(OSError):  # nobody reads it any more
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            rank = os.path.basename(path)[len("nccl-") : -len(".pipe")]
            with contextlib.suppress(FileNotFoundError):
                os.unlink(node.at("logs", f"nccl-rank-{rank}"))
            os.write(pipe, b"1")
            os.close(pipe)
            asked += 1
    return asked


def recorded(node: Node, wanted: int, until: float) -> Dict[str, List[str]]:
    """Return the last collectives of each rank, once so many flight recorders have written."""
    found: Dict[str, List[str]] = {}
    while True:
        for entry in os.scandir(node.at("logs")):
            rank = entry.name[len("nccl-rank-") :]
            if entry.name.startswith("nccl-rank-") and rank not in found:
                with contextlib.suppress(Exception):  # half written, or in a format to come
                    found[rank] = collectives(entry.path)
        if len(found) >= wanted or time.monotonic() > until:
            return found
        time.sleep(0.1)


def collectives(path: str) -> List[str]:
    """Return the last collectives in a flight recorder's file."""
    import pickle

    class Plain(pickle.Unpickler):
        """Reads numbers, texts and lists of them; anything else could run code."""

        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    with open(path, "rb") as file:
        entries = Plain(file).load()["entries"][-LAST_COLLECTIVES:]
    told = ("collective_seq_id", "profiling_name", "input_sizes", "state")
    return [" ".join(str(entry.get(name, "")) for name in told) for entry in entries]


def keep_stacks(node: Node, witnesses: Dict[str, List[Witness]]) -> None:
    """Write all stacks beside the logs, whole."""
    with open(node.at("logs", "stacks.log"), "a", encoding="utf-8") as file:
        for rank, group in sorted(witnesses.items()):
            for each in group:
                file.write(f"rank {rank}, process {each.process.pid} ({each.command}), ")
                file.write(f"{each.state}:\n{each.text or 'no stacks'}\n")


def gpu_states() -> List[str]:
    """Return how busy each GPU is: one that waits for others is, one that is waited for is not."""
    query = "--query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu,pstate"
    return [
        f"GPU {index}: {busy} % busy, {used} of {total} MiB, {heat} C, {state}"
        for index, busy, used, total, heat, state, *_ in nvidia_smi(query)
    ]


# --- Checkpoints -----------------------------------------------------------------------------

# Whether one is whole is told by names, sizes and the ends of files: it may have 100 GB.
MARKERS = (".complete", "COMPLETE")
MARKED_SEEN = 100  # so many of the newest show whether a script marks what is complete
PASSED_OVER = 10
UNFINISHED = re.compile(r"\.|tmp-|.*\.tmp$")
CHECKPOINT_FILES = (".pt", ".pth", ".ckpt", ".index")
STEP = re.compile(r"step[=_-]?(\d+)|(?<![\d.])(?<!-v)(\d+)(?:-v\d+)?(?:\.(?:pt|pth|ckpt))?$")
OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how its files began before version 1.6
ZIP_END, ZIP_END_SIZE = b"PK\5\6", 22
INDEX_END = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"
HEADER_LIMIT = 100 << 20  # what safetensors itself allows
METADATA_LIMIT = 64 << 20
TRAINER_STATE = "trainer_state.json"
WEIGHTS = re.compile(r"(adapter_|pytorch_)?model(_fsdp)?\.(safetensors|bin)(\.index\.json)?")
STATES = re.compile(r"((?:bf16_|fp16_)?zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")


def step_of(name: str) -> Optional[int]:
    """Return the step that a name tells."""
    match = STEP.search(name)
    return int(match.group(1) or match.group(2)) if match else None


class Checkpoint:
    """What may be a checkpoint: a folder, a file, or files whose names begin alike."""

    def __init__(self, path: str, beside: Sequence[str] = ()) -> None:
        self.changed = os.stat(path).st_mtime
        self.is_folder = os.path.isdir(path)
        self.folder = path if self.is_folder else os.path.dirname(path)
        self.file = os.path.basename(path)
        self.path = path[: -len(".index")] if path.endswith(".index") else path
        self.name = os.path.basename(self.path)
        self.step = step_of(self.name)
        self.beside = beside

    def names(self) -> List[str]:
        """Return the names of its files and folders."""
        if self.is_folder:
            return sorted(os.listdir(self.folder))
        start = self.name + "."
        return [self.file, *(each for each in self.beside if each.startswith(start))]

    def at(self, name: str) -> str:
        """Return the path of one of them."""
        return os.path.join(self.folder, name)

    def marked(self) -> bool:
        """Tell whether its script says that it is complete."""
        return self.is_folder and any(os.path.exists(self.at(each)) for each in MARKERS)

    def layout(self) -> Tuple[str, Flaws]:
        """Return what wrote it, and what finds its flaws."""
        signs = [self.file]
        if self.is_folder:
            signs = [f"{self.name}/", *(f"{self.name}/{each}" for each in self.names())]
        for layout, sign, flaws in LAYOUTS:
            if any(re.fullmatch(sign, each) for each in signs):
                return layout, flaws
        return "", unknown

    def flaw(self, marking: bool) -> str:
        """Return why it is not complete, nothing if it is."""
        try:
            if self.marked():
                return ""
            if marking and self.is_folder:
                return f"has no marker ({' or '.join(MARKERS)}), and others there have one"
            return next(self.layout()[1](self), "")
        except Exception as error:  # whatever a file holds, the offer must not fail for it
            return f"cannot be read: {getattr(error, 'strerror', None) or error}"

    def record(self) -> Json:
        """Return what the caller is told."""
        times = [os.lstat(self.at(each)).st_mtime for each in self.names()]
        layout = self.layout()[0] or "marked"
        newest = max(times, default=self.changed)
        return {"path": self.path, "step": self.step, "time": newest, "layout": layout}


def newest_checkpoint(folder: str) -> Json:
    """Return the newest complete checkpoint in a folder, and what looks newer but is not whole."""
    folder = os.path.normpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(folder)))
    passed_over: List[Json] = []
    newest = None
    try:
        found = newest_first(folder)
        marking = any(each.marked() for each in found[:MARKED_SEEN])
        for each in found:
            why = each.flaw(marking)
            if not why:
                newest = each.record()
                break
            passed_over.append({"path": each.path, "why": why})
    except FileNotFoundError:
        pass  # nothing was saved yet
    except OSError as error:
        passed_over.append({"path": folder, "why": f"cannot be read: {error.strerror}"})
    return {"checkpoint": newest, "checkpoints_passed_over": passed_over[:PASSED_OVER]}


def newest_first(folder: str) -> List[Checkpoint]:
    """Return what may be a checkpoint."""
    import heapq

    found = sorted(candidates(folder), key=lambda each: (each.step or 0, each.changed))
    numbered = [each for each in reversed(found) if each.step is not None]
    others = [each for each in reversed(found) if each.step is None]
    others = [each for each in others if each.marked() or each.layout()[0]]
    # Steps keep their order, whatever the times; what names no step has its place by time.
    return list(heapq.merge(numbered, others, key=lambda each: each.changed, reverse=True))


def candidates(folder: str) -> Iterator[Checkpoint]:
    """Yield what may be a checkpoint by its own name."""
    entries = list(os.scandir(folder))
    names = [each.name for each in entries]
    for entry in entries:
        if UNFINISHED.match(entry.name):
            continue
        with contextlib.suppress(OSError):  # a link to nothing, or removed meanwhile
            if entry.name.endswith(CHECKPOINT_FILES) or entry.is_dir():
                yield Checkpoint(entry.path, names if entry.name.endswith(".index") else ())


def torch_file(it: Checkpoint) -> Iterator[str]:
    """Look at a file of torch.save, or of Lightning."""
    yield from torch_flaws(it.path)


def tensorflow(it: Checkpoint) -> Iterator[str]:
    """Look at an index and the data files that belong to it."""
    names = it.names()
    count = next((each.rpartition("-of-")[2] for each in names if ".data-" in each), "")
    if not count.isdigit():
        yield "has no data files"
    else:
        shards = (f"{it.name}.data-{shard:05}-of-{count}" for shard in range(int(count)))
        yield from missing(it, shards)
    if not ends_of(it.at(it.file))[1].endswith(INDEX_END):
        yield "its index is cut short"


def torch_distributed(it: Checkpoint) -> Iterator[str]:
    """Look at a folder of torch.distributed.checkpoint."""
    if ".metadata" not in it.names():
        yield "has no .metadata, which is written last"
    if not ends_of(it.at(".metadata"))[1].endswith(b"."):
        yield "its .metadata is cut short"
    with open(it.at(".metadata"), "rb") as file:
        needed = re.findall(rb"__\d+_\d+\.distcp", file.read(METADATA_LIMIT))
    yield from missing(it, (each.decode() for each in needed))
    yield from cut_short(it)


def deepspeed(it: Checkpoint) -> Iterator[str]:
    """Look at the folder of one step."""
    latest = read_text(os.path.join(os.path.dirname(it.path), "latest")).strip()
    if not latest:
        yield "has no file latest beside it, which is written last"
    if it.name != latest and (it.step is None or it.step >= (step_of(latest) or 0)):
        yield f"was not finished: the file latest beside it names {latest}"
    yield from missing_ranks(it)
    yield from cut_short(it)


def missing_ranks(it: Checkpoint) -> Iterator[str]:
    """Say which states are there for some ranks only."""
    kinds: Dict[Tuple[bool, str], Set[Tuple[int, int]]] = {}
    for match in filter(None, map(STATES.fullmatch, it.names())):
        zero, rank, part, kind = match.groups()
        kinds.setdefault((bool(zero), kind), set()).add((int(rank or 0), int(part)))
    if not kinds:
        yield "has no states"
    for (_, kind), there in kinds.items():
        whole = (1 + max(rank for rank, _ in there)) * (1 + max(part for _, part in there))
        if len(there) < whole:
            yield f"has {len(there)} of {whole} files of {kind} states"


def deepspeed_alone(it: Checkpoint) -> Iterator[str]:
    """Look at a folder for one step alone, as Lightning makes it."""
    latest = read_text(it.at("latest")).strip()
    if not latest or not os.path.isdir(it.at(latest)):
        yield f"its file latest names {latest or 'nothing'}, which is not there"
    yield from flaws_within(Checkpoint(it.at(latest)), deepspeed)


def hugging_face(it: Checkpoint) -> Iterator[str]:
    """Look at a folder of transformers' Trainer; DeepSpeed's or FSDP's may be in it."""
    names = it.names()
    if TRAINER_STATE not in names:
        yield f"has no {TRAINER_STATE}"
    if not read_json(it.at(TRAINER_STATE)):
        yield f"its {TRAINER_STATE} is cut short"
    weights = [each for each in names if WEIGHTS.fullmatch(each)]
    for index in (each for each in weights if each.endswith(".json")):
        shards = read_json(it.at(index)).get("weight_map")
        if not shards:
            yield f"its {index} is cut short"
        else:
            yield from missing(it, shards.values())
    yield from cut_short(it)
    for inner in (Checkpoint(it.at(each)) for each in names if os.path.isdir(it.at(each))):
        layout, flaws = inner.layout()
        if layout in ("DeepSpeed", "torch distributed"):
            weights.append(inner.name)
            yield from flaws_within(inner, flaws)
    if not weights:
        yield "has no weights"


def unknown(it: Checkpoint) -> Iterator[str]:
    """Say what would help."""
    yield f"has no layout that is known here, and no marker ({' or '.join(MARKERS)})"


def flaws_within(it: Checkpoint, flaws: Flaws) -> Iterator[str]:
    """Say in which folder the flaws are."""
    return (f"its folder {it.name} {each}" for each in flaws(it))


def missing(it: Checkpoint, wanted: Iterable[str]) -> Iterator[str]:
    """Say which of the files that it should have is not there."""
    lacking = sorted(set(wanted).difference(it.names()))
    if lacking:
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        yield f"has no {lacking[0]}{more}"


def cut_short(it: Checkpoint) -> Iterator[str]:
    """Say which files in a folder are not whole."""
    for name in it.names():
        flaws = FILES.get(os.path.splitext(name)[1])
        if flaws:
            yield from (f"its {name} {each}" for each in flaws(it.at(name)))


def torch_flaws(path: str) -> Iterator[str]:
    """Look at what torch.save wrote, a zip archive, or pickle alone did."""
    head, tail = ends_of(path)
    if not head:
        yield "is empty"
    elif head.startswith(b"PK"):
        if not tail.startswith(ZIP_END):
            yield "is cut short: the end of the zip archive is missing"
    elif head == OLD_TORCH:
        yield "has torch's old format, which does not show whether it is whole"
    elif not head.startswith(b"\x80"):
        yield "is nothing that torch saves"
    elif not tail.endswith(b"."):
        yield "is cut short: the end of the pickle is missing"


def safetensors_flaws(path: str) -> Iterator[str]:
    """Look whether the file is as long as its header says."""
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= min(size, HEADER_LIMIT) else b""
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        end = max((each["data_offsets"][1] for each in tensors.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        yield "has a broken header"
    else:
        if size != 8 + length + end:
            yield f"has {size} of {8 + length + end} bytes"


def ends_of(path: str) -> Tuple[bytes, bytes]:
    """Return the first and the last bytes of a file."""
    with open(path, "rb") as file:
        head = file.read(len(OLD_TORCH))
        file.seek(max(0, file.seek(0, os.SEEK_END) - ZIP_END_SIZE))
        return head, file.read()


FILES = {
    ".pt": torch_flaws,
    ".pth": torch_flaws,
    ".bin": torch_flaws,
    ".safetensors": safetensors_flaws,
}
LAYOUTS: Sequence[Tuple[str, str, Flaws]] = (  # the first counts that a name, or one in it, shows
    ("torch file", r"[^/]+\.(pt|pth|ckpt)", torch_file),
    ("TensorFlow", r"[^/]+\.index", tensorflow),
    ("torch distributed", r".+/(\.metadata|.+\.distcp)", torch_distributed),
    ("DeepSpeed", r".+/.+_(model|optim)_states\.pt", deepspeed),
    ("Hugging Face", rf"checkpoint-\d+/|.+/{TRAINER_STATE}", hugging_face),
    ("DeepSpeed", r"global_step\d+/", deepspeed),
    ("DeepSpeed", r".+/latest", deepspeed_alone),
)


# --- Verbs -----------------------------------------------------------------------------------


class Call:
    """One request and the way to answer it."""

    def __init__(self, line: bytes) -> None:
        match = re.search(rb'"marker"\s*:\s*"(\w+)"', line)
        self.marker = match.group(1) if match else b""
        self.line = line
        self.answered = False

    def parse(self) -> Json:
        """Return the request."""
        try:
            request = json.loads(self.line)
        except ValueError as error:
            raise Refusal("bad_request", f"the request is not JSON: {error}") from error
        if not isinstance(request, dict):
            raise Refusal("bad_request", "the request is not an object")
        return request

    def reply(self, record: Json) -> None:
        """Answer, after a marker that tells the answer from what login scripts print."""
        self.answered = True
        line = encode(record).encode("utf-8", "replace")
        sys.stdout.buffer.write(b"\n" + self.marker + b"\n" + line + b"\n")
        sys.stdout.buffer.flush()


def offer(request: Json, call: Call) -> Json:
    """Tell what this host has."""
    root = root_of(request)
    holders = interfaces()
    sha = request.get("source")
    saved = request.get("checkpoint_dir")
    ticket = Ticket.of(request)
    if ticket and request.get("slots"):
        ticket.leave()
    elif ticket and request.get("slots") is not None:
        ticket.withdraw()
    note_restart(root)
    return {
        "ok": True,
        **fitness(root),
        **withheld(),
        "machine_id": read_text("/etc/machine-id").strip() or socket.gethostname(),
        "boot_id": boot_id(),
        "hostname": socket.gethostname(),
        "user": user_name(),
        "uid": os.getuid(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "home": os.path.expanduser("~"),
        "root": root,
        "ssh_address": (os.environ.get("SSH_CONNECTION", "").split() + [None] * 3)[2],
        "cpus": len(os.sched_getaffinity(0)),
        "clock": time.time(),
        "gpus": gpus(),
        "busy": {**claimed_slots(ticket), **busy_slots()},
        "ports": free_ports(16),
        "addresses": holders,
        "routes": {peer: route(peer, holders) for peer in request.get("peers") or ()},
        "has_source": bool(sha) and keep_source(source_path(root, str(sha))),
        **(newest_checkpoint(saved) if saved else {}),
    }


def keep_source(path: str) -> bool:
    """Tell whether a source is there; if so, it counts as used, so that it stays there."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)
        return True
    return False


def disk_free(path: str) -> int:
    """Return the bytes that this user may still write where a path is or will be."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def put_source(request: Json, call: Call) -> Json:
    """Store a source snapshot, once it is known to have come whole."""
    import hashlib

    root, size = root_of(request), request["size"]
    path = source_path(root, request["source"])
    draft = f"{path}.{os.getpid()}"
    digest = hashlib.sha256()
    try:
        with umask(0o077):
            os.makedirs(sources_of(root), exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            while size > 0:
                data = sys.stdin.buffer.read(min(size, 1 << 20))
                if not data:
                    raise Refusal("incomplete", f"the source ended {size} bytes early")
                digest.update(data)
                file.write(data)
                size -= len(data)
        if digest.hexdigest() != request["source"]:
            raise Refusal("incomplete", "the source was changed on its way: its SHA-256 differs")
        os.replace(draft, path)
    except OSError as error:
        raise unwritable(root, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
    return {"ok": True, "stored": True}


def prepare(request: Json, call: Call) -> Json:
    """Reserve a node and check that its ranks can start."""
    node = Node.of(request)
    if (request.get("stop_signal") or "SIGTERM") not in signal.Signals.__members__:
        raise Refusal("bad_request", f"stop_signal {request['stop_signal']!r} is no signal's name")
    until = time.monotonic() + PREPARED_WAIT
    while True:
        created = create(node, request)
        reply = node.ask({"verb": "prepare"})
        if reply:
            return reply if created or not reply["ok"] else {**reply, "already": True}
        again = node.never_started()
        if again and not node.agents():
            node.remove()
            continue
        if node.ended() and not again:
            raise Refusal("ended", f"attempt {node.mark} has ended here: use another attempt")
        if created or time.monotonic() > until:
            raise Refusal("lost", f"the agent of {node.mark} died: see {node.at('agent.log')}")
        time.sleep(0.05)


def create(node: Node, request: Json) -> bool:
    """Make a node and its agents, or return False if it has been made."""
    try:
        if not node.create():
            return False
        source = globals().get("AGENT_SOURCE") or read_text(__file__).encode()
        write_whole(node.at("agent.py"), source)
        if request.get("site"):
            os.mkdir(node.at("site"), 0o700)
            write_whole(node.at("site", "sitecustomize.py"), request["site"].encode())
        server = node.server()
    except OSError as error:
        node.remove()
        raise unwritable(node.path, error) from error
    detach(lambda: watchdog(node, request, server), node.at("agent.log"), [server.fileno()])
    server.close()
    keep_house(node.root, request)
    return True


def start(request: Json, call: Call) -> Json:
    """Start the ranks of a prepared node."""
    node = Node.of(request)
    reply = node.ask(request)
    if reply:
        return reply
    started = (event for event in events(node.journal) if event["k"] == "started")
    pids = {event["name"]: event["pid"] for event in started}
    if pids:
        return {"ok": True, "pids": pids, "already": True}
    why = (node.ended() or {}).get("reason") or "it has never been prepared on this host"
    raise Refusal("not_prepared", f"cannot start {node.mark}: {why}")


def attach(request: Json, call: Call) -> None:
    """Send a journal from an offset, and follow it."""
    node = Node.of(request)
    if not os.path.exists(node.journal):
        raise Refusal("unknown", f"{node.mark} has never been prepared on this host")
    owner = str(request.get("owner") or "")
    if owner:
        claim(node, owner, request)
    journal = os.open(node.journal, os.O_RDONLY | os.O_CLOEXEC)
    size = os.fstat(journal).st_size
    offset = request.get("offset")
    if offset is None:
        offset = int(read_text(node.at("acknowledged")) or 0)
    offset = min(offset, size)  # a host that lost its power may have lost the end of the journal
    facts = {"offset": offset, "boot_id": boot_id(), "clock": time.time(), "size": size}
    # A watcher that takes over has not seen which processes ended before the offset.
    passed = [each for each in events(node.journal, offset) if each["k"] in ("exit", "ended")]
    call.reply({"ok": True, "attached": True, "passed": passed, **facts})
    Watch(node, journal, offset, buffered_stdin(), owner, request.get("renews", True)).run()
    if owner and owner == read_text(node.at("owner")):
        node.leave()


def claim(node: Node, owner: str, request: Json) -> None:
    """Make a watcher the owner of a job, unless another one is at work or has replaced it."""
    if owner != read_text(node.at("owner")):
        if request.get("again"):
            raise Refusal("taken_over", f"another watcher has taken {node.mark} over")
        if node.fresh("owner") and not request.get("force"):
            write_whole(node.at("claimant"), owner.encode())
            raise Refusal("taken_over", f"another watcher watches {node.mark}")
    write_whole(node.at("owner"), owner.encode())


def reach(request: Json, call: Call) -> Json:
    """Tell whether this host gets any answer from another one: a refusal is one, too."""
    try:
        knock(request["address"], request["port"], NEIGHBOUR_TIMEOUT)
    except ConnectionRefusedError:
        pass
    except OSError as error:
        return {"ok": True, "reached": False, "why": error.strerror or str(error)}
    return {"ok": True, "reached": True}


def buffered_stdin() -> bytes:
    """Return what Python has read from stdin beyond the request."""
    os.set_blocking(0, False)
    return sys.stdin.buffer.read(1 << 16) or b""


def stop(request: Json, call: Call) -> Json:
    """End a job on this host, whoever tends it."""
    node = Node.of(request)
    owner = request.get("owner")
    if not os.path.isdir(node.path):
        return {"ok": True, "state": "unknown", "survivors": 0}
    if owner is not None and not owns(node, owner, bool(request.get("unwatched"))):
        return {"ok": True, "state": "not_owner", "survivors": len(survivors(node))}
    reason = str(request.get("reason") or "stopped")
    if Journal(node.journal).add_unless_ended(("cancel", {"reason": reason})):
        reply = node.ask({"verb": "stop", "reason": reason}, timeout=2)
        if reply is None:
            tend(node)
    until = time.monotonic() + float(request.get("wait") or 0)
    while not node.over() and time.monotonic() < until:
        time.sleep(0.02)
    state = "ended" if node.over() else "stopping"
    return {"ok": True, "state": state, "survivors": len(survivors(node))}


def owns(node: Node, owner: str, unwatched: bool) -> bool:
    """Tell whether a watcher may end a job: nobody has replaced it, nor is about to.

    :param unwatched: it has not watched yet, and may end what nobody watches
    """
    if node.fresh("claimant") and owner != read_text(node.at("claimant")):
        return False
    return owner == read_text(node.at("owner")) or (unwatched and not node.fresh("owner"))


def survivors(node: Node) -> List[int]:
    """Return the processes of a job that live."""
    return sorted(process.pid for process in Members(node.mark, node.agents()).find())


def status(request: Json, call: Call) -> Json:
    """Tell how a job on this host stands, or all jobs."""
    if request.get("job") is not None:
        return {"ok": True, **summary(Node.of(request))}
    return {"ok": True, "jobs": [summary(node) for node in nodes(root_of(request))]}


def summary(node: Node) -> Json:
    """Return where a node stands, from its journal."""
    if not os.path.isdir(node.path):
        return {"state": "unknown", "ranks": {}, "survivors": 0, "boot_id": boot_id()}
    facts: Json = {"state": "preparing", "ranks": {}, "cancelled": None, "ended": None}
    for event in events(node.journal):
        note_event(facts, event)
    state = node.state()
    told = ("job", "attempt", "node", "label", "slots", "since")
    return {
        **facts,
        **{name: state.get(name, node.key.get(name)) for name in told},
        "dir": node.path,
        "grace_period": state.get("grace_period"),
        "watched": watched(node),
        "agents": len(node.agents()),
        "survivors": len(survivors(node)),
        "boot_id": boot_id(),
    }


def watched(node: Node) -> Optional[float]:
    """Return when somebody last took over lines of the journal, else when the node was made."""
    for name in ("acknowledged", "state.json"):
        with contextlib.suppress(OSError):
            return os.stat(node.at(name)).st_mtime
    return None


def note_event(facts: Json, event: Json) -> None:
    """Bring the summary of a node up to one event."""
    kind = event.get("k")
    states = {"started": "running"}
    if kind in ("prepared", "started", "ending", "ended"):
        facts["state"] = states.get(str(kind), kind)
    if kind == "cancel":
        facts["cancelled"] = event["reason"]
    elif kind == "ended":
        facts["ended"] = event
    elif kind in ("started", "exit") and event["rank"] is not None:
        ended = {name: event.get(name) for name in ("pid", "code", "signal")}
        how = "running" if kind == "started" else "exited"
        facts["ranks"][str(event["rank"])] = {"state": how, **ended}


def dump(request: Json, call: Call) -> Json:
    """Tell where every rank stands, what its last collectives were, and how busy the GPUs are."""
    node = Node.of(request)
    if not os.path.exists(node.journal):
        raise Refusal("unknown", f"{node.mark} has never been prepared on this host")
    until = time.monotonic() + float(request.get("wait") or STACKS_WAIT)
    asked = ask_recorders(node)
    ranks = summary(node)["ranks"]
    running = {rank: known["pid"] for rank, known in ranks.items() if known["state"] == "running"}
    witnesses = {rank: witnesses_of(node, pid) for rank, pid in running.items()}
    question([each for group in witnesses.values() for each in group], until)
    for rank, group in witnesses.items():
        for each in group[:PROCESSES_SPIED]:
            spy(each)
        ranks[rank]["processes"] = [each.told() for each in group[:PROCESSES_SHOWN]]
    with contextlib.suppress(OSError):  # a full disk
        keep_stacks(node, witnesses)
    errors = read_text(node.at("site", "errors"))[-STACKS_SHOWN:]
    evidence = {"gpus": gpu_states(), "nccl": recorded(node, asked, until), "errors": errors}
    return {"ok": True, "ranks": ranks, **evidence}


def nodes(root: str) -> Iterator[Node]:
    """Yield every node below a root."""
    import glob

    jobs = os.path.join(root, "jobs")
    for path in sorted(glob.glob(os.path.join(glob.escape(jobs), "*", "*", "*", ""))):
        job, attempt, node = os.path.relpath(path, jobs).split(os.sep)
        with contextlib.suppress(Refusal):  # some folder that is not ours
            yield Node(root, job, attempt, node)


def fetch(request: Json, call: Call) -> None:
    """Send files of a node as a tar stream."""
    import tarfile

    it = Collection(Node.of(request).at("logs" if request.get("base") == "logs" else "work"))
    for path in request["paths"]:
        it.add(path)
    files = sum(not os.path.isdir(path) for path in it.entries.values())
    call.reply({"ok": True, "found": it.found, "faults": it.faults, "files": files})
    # Of files with several names, each is sent whole.
    out, form = sys.stdout.buffer, tarfile.PAX_FORMAT
    with tarfile.open(fileobj=out, mode="w|", format=form, dereference=True) as tar:
        for name, path in it.entries.items():
            if os.path.isdir(path):
                tar.addfile(tar.gettarinfo(path, name))
                continue
            with open(path, "rb") as file:
                tar.addfile(tar.gettarinfo(arcname=name, fileobj=file), file)
    out.flush()


class Collection:
    """What is asked for from a folder, and why some of it cannot be had."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.found: Dict[str, str] = {}  # the names of what was asked for
        self.entries: Dict[str, str] = {}  # the paths of all files and folders in it, by name
        self.faults: List[Json] = []

    def add(self, pattern: str) -> None:
        """Add a path, or each path that a pattern matches."""
        import glob

        whole = os.path.join(self.base, pattern)
        if os.path.lexists(whole) or not glob.has_magic(pattern):
            self._add(pattern, whole)
            return
        paths = glob.glob(os.path.join(glob.escape(self.base), pattern), recursive=True)
        for path in sorted(paths):
            self._add(self._told(path), path)
        if not paths:
            self.faults.append({"path": pattern, "why": "nothing matches"})

    def _add(self, asked: str, path: str) -> None:
        path = os.path.normpath(path)
        self.found[asked] = name = self._told(path).lstrip("/")
        self._gather(path, name, frozenset())

    def _told(self, path: str) -> str:
        """Return a path as the user knows it: relative to the base if it is in there."""
        inside = path == self.base or path.startswith(self.base + os.sep)
        return os.path.relpath(path, self.base) if inside else path

    def _gather(self, path: str, name: str, above: FrozenSet[Tuple[int, int]]) -> None:
        """Take a file, or all of a folder; a link counts as what it points to."""
        try:
            status = os.stat(path)
            key = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode):
                open(path, "rb").close()
                self.entries[name] = path
            elif not stat.S_ISDIR(status.st_mode):
                self._refuse(path, "it is neither a file nor a folder")
            elif key not in above:  # else a link leads back up, to what is taken already
                self.entries[name] = path
                for child in sorted(os.listdir(path)):
                    self._gather(os.path.join(path, child), f"{name}/{child}", above | {key})
        except OSError as error:
            self._refuse(path, error.strerror or str(error))

    def _refuse(self, path: str, why: str) -> None:
        to = f"a link to {os.readlink(path)}: " if os.path.islink(path) else ""
        self.faults.append({"path": self._told(path), "why": f"{to}{why}"})


def examine(request: Json, call: Call) -> Json:
    """Look at what a preflight looks at, beyond an offer."""
    python = request.get("python") or "python3"
    found = versions(python, dict(os.environ), os.path.expanduser("~"))
    free = {gpu["uuid"] for gpu in gpus()} - {slot[4:] for slot in busy_slots()}
    foreign = gpu_processes(free)
    findings = [in_use(foreign) if foreign else None, logind()]
    return {"ok": True, "versions": found, "problems": [each for each in findings if each]}


def mesh(request: Json, call: Call) -> None:
    """Listen for peers, and knock at them as soon as the caller knows where they listen."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    listener = listen(0)

    def welcome() -> None:
        while True:
            listener.accept()[0].close()

    def fault(peer: Tuple[str, int]) -> Optional[str]:
        try:
            knock(peer[0], peer[1], KNOCK_TIMEOUT)
        except OSError as error:
            return error.strerror or str(error)
        return None

    threading.Thread(target=welcome, daemon=True).start()
    call.reply({"ok": True, "port": listener.getsockname()[1]})
    peers = json.loads(sys.stdin.buffer.readline() or b"[]")
    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        faults = list(pool.map(fault, peers))
    sys.stdout.buffer.write(encode(faults).encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()  # others may still knock here: until the caller has heard from all


def mark(request: Json, call: Call) -> Json:
    """Drain the host, note a fault of its own, or give it back, for all users of the host."""
    marks: Json = {name: request[name] for name in ("drained", "fault") if name in request}
    try:
        withhold(marks)
    except OSError as error:
        raise unwritable(WITHHELD, error) from error
    return {"ok": True, **withheld()}


def result(request: Json, call: Call) -> Json:
    """Return what the ranks left in their result and metrics files."""
    node = Node.of(request)
    value, error, notes = None, None, []
    try:
        text = "".join(lines_of(node.at("result.json"), RESULT_LIMIT))
        value = json.loads(text) if text.strip() else None
        if not text.strip():
            notes.append("$DT_RESULT_FILE is there but empty: the result is null")
    except FileNotFoundError:
        pass
    except OverflowError as large:
        error = f"has {large}; write it to a file of its own, and name that in outputs="
    except OSError as broken:
        notes.append(f"$DT_RESULT_FILE cannot be read, the result is null: {broken.strerror}")
    except (ValueError, RecursionError) as broken:
        error = f"is not JSON: {broken}; write it with json.dump"
    metrics = last_metrics(node)
    return {"ok": True, "result": value, "result_error": error, "metrics": metrics, "notes": notes}


def lines_of(path: str, limit: float = float("inf")) -> Iterator[str]:
    """Yield the lines of what must be a file: a pipe would keep us for ever."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8", errors="replace") as it:
        status = os.fstat(it.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if status.st_size > limit:
            raise OverflowError(f"{status.st_size} bytes, the limit is {limit}")
        yield from it


def last_metrics(node: Node) -> Json:
    """Return the last value of each metric."""
    last: Json = {}
    with contextlib.suppress(OSError):
        for line in lines_of(node.at("metrics.jsonl")):
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                last.update(record if isinstance(record, dict) else {})
    return last


class Leftover:
    """An ended job or a source that nobody may need any more."""

    def __init__(self, name: str, path: str, keep_days: float, used: str) -> None:
        self.name = name
        self.path = path
        self.keep_days = keep_days
        self.age = time.time() - os.stat(used).st_mtime
        self.size = tree_size(path)

    def remove(self) -> None:
        """Remove it, and the folders that are empty then."""
        remove_tree(self.path)
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        for _ in range(2 if "/" in self.name else 0):
            self.path = os.path.dirname(self.path)
            with contextlib.suppress(OSError):
                os.rmdir(self.path)


def leftovers(root: str, request: Json) -> Iterator[Leftover]:
    """Yield what may go: each job says itself for how long it is kept, unless the request does."""
    asked = request.get("keep_days")
    for node in list(nodes(root)):
        tend(node)
        if node.ended():
            own = node.state().get("keep_days") if asked is None else asked
            keep = KEEP_DAYS if own is None else float(own)
            yield Leftover(node.mark, node.path, keep, node.journal)
    keep = float(KEEP_DAYS if asked is None else asked)
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(sources_of(root))):
            yield Leftover(entry.name, entry.path, keep, entry.path)


def gc(request: Json, call: Call) -> Json:
    """Remove ended jobs and sources that are old, and the oldest beyond a size."""
    root = root_of(request)
    removed, size, total = [], 0, 0
    with alone(root):
        found = sorted(leftovers(root, request), key=lambda each: -each.age)
        total = sum(each.size for each in found)
        for each in found:
            old = each.age > each.keep_days * 86400
            over = total - size > (request.get("max_bytes") or float("inf"))
            if (old or over) and each.age >= float(request.get("spare") or 0):
                removed.append(each.name)
                size += each.size
                if not request.get("dry_run"):
                    each.remove()
    return {"ok": True, "removed": removed, "bytes": size, "left": total - size}


@contextlib.contextmanager
def alone(root: str) -> Iterator[None]:
    """Clean up while nobody else does, and leave the date of it."""
    with umask(0o077):
        os.makedirs(root, exist_ok=True)
    fd = os.open(house_path(root), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(fd)
        yield
    except BlockingIOError as error:
        raise Refusal("busy", "another call cleans up here; try again in a minute") from error
    finally:
        os.close(fd)


def house_path(root: str) -> str:
    """Return the file that is locked by who cleans up, and dates the last time."""
    return os.path.join(root, "housekeeping")


def keep_house(root: str, request: Json) -> None:
    """Clean up beside a start, now and then."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - os.stat(house_path(root)).st_mtime < HOUSEKEEPING_EVERY:
            return

    def clean() -> None:
        os.nice(19)
        limits = {"max_bytes": request.get("max_bytes"), "spare": COLLECTED_AFTER}
        gc({"root": root, **limits}, Call(b""))

    detach(clean, os.devnull)


VERBS: Dict[str, Callable[[Json, Call], Optional[Json]]] = {
    each.__name__: each
    for each in (
        offer,
        examine,
        mesh,
        mark,
        put_source,
        prepare,
        start,
        attach,
        reach,
        stop,
        status,
        dump,
        fetch,
        result,
        gc,
    )
}


# --- Rank ------------------------------------------------------------------------------------

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class Wrapper:
    """A rank below torchrun or mpirun: gives it its own log and records its exit."""

    def __init__(self, program: Sequence[str]) -> None:
        self.program = list(program)
        self.folder = os.environ["DT_NODE_DIR"]
        ranks = [os.environ[name] for name in RANK_VARIABLES if os.environ.get(name)]
        if not ranks:
            sys.exit(f"agent rank: none of {', '.join(RANK_VARIABLES)} is set by the launcher")
        self.rank = int(ranks[0])
        self.began = time.monotonic()
        self.name = f"rank-{self.rank}"
        self.pid = os.getpid()  # the program's own as soon as it has one

    def run(self) -> int:
        """Run the program, and return its wait status."""
        import subprocess

        path = os.path.join(self.folder, "logs", f"{self.name}.log")
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # An MPI's own descriptors (PMI_FD) must get through.
            process = subprocess.Popen(
                self.program,
                env=self.environment(),
                stdout=log,
                stderr=log,
                close_fds=False,
                start_new_session=True,
            )
        except OSError as error:
            os.write(log, f"cannot execute {self.program[0]}: {error.strerror}\n".encode())
            return 127 << 8
        self.pid = process.pid
        self.forward()
        self.write({"name": self.name, "rank": self.rank, "pid": self.pid})
        return os.waitpid(self.pid, 0)[1]

    def environment(self) -> Dict[str, str]:
        """Return the rank's environment, without what would bind a nested torchrun."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
        return {**kept, "DT_RANK": str(self.rank)}

    def forward(self) -> None:
        """Pass signals on to the program."""
        for name in FORWARDED:
            signal.signal(signal.Signals[name], lambda number, _: os.kill(self.pid, number))

    def write(self, record: Json) -> None:
        """Tell the supervisor."""
        write_json(os.path.join(self.folder, "ranks", f"{self.rank}.json"), record)

    def finish(self, status: int) -> None:
        """Record how the program ended, and end in the same way."""
        elapsed = time.monotonic() - self.began
        record = exit_record(self.name, self.rank, self.pid, status, elapsed)
        # The launcher's own error file goes with the launcher.
        record["traceback"] = torch_error(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
        self.write(record)
        if os.WIFSIGNALED(status):
            import resource

            number = os.WTERMSIG(status)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(128 + number)
        os._exit(os.WEXITSTATUS(status))


# --- Main ------------------------------------------------------------------------------------


def serve() -> None:
    """Answer the request on stdin."""
    call = Call(sys.stdin.buffer.readline())
    try:
        request = call.parse()
        verb = request.get("verb")
        if verb not in VERBS:
            raise Refusal("unknown_verb", f"unknown verb {verb!r}; known: {', '.join(VERBS)}")
        reply = VERBS[verb](request, call)
        if reply is not None:
            call.reply(reply)
    except Refusal as refusal:
        call.reply(refusal.reply)
    except Exception:  # the caller is elsewhere: a reply is the only way to tell it
        import traceback

        if call.answered:
            raise

        call.reply(Refusal("internal", traceback.format_exc()).reply)


def main() -> None:
    """Serve a request, or stand between a launcher and its rank."""
    if sys.argv[1:2] != ["rank"]:
        return serve()
    options, program = sys.argv[2:], sys.argv[sys.argv.index("--") + 1 :]
    if options[0].startswith("--local-rank-at="):  # of the program's words: it ends in our number
        program[int(options[0].partition("=")[2])] += os.environ.get("LOCAL_RANK", "")
    wrapper = Wrapper(program)
    return wrapper.finish(wrapper.run())


if __name__ == "__main__":
    main()
