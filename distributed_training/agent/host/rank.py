"""A rank below a launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from .exits import exit_record
from .files import write_json
from .tracebacks import torch_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .records import Json


FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def below_torchrun(words: Sequence[str]) -> Wrapper:
    """Return the wrapper of a rank whose program and variables torchrun has brought.

    :param words: options, ``--`` and the program
    """
    options, program = words[: words.index("--")], list(words[words.index("--") + 1 :])
    for option in options:
        if option.startswith("--local-rank-at="):  # of the program's words: it ends in our number
            program[int(option.partition("=")[2])] += os.environ.get("LOCAL_RANK", "")
    if not os.environ.get("RANK"):
        sys.exit("agent rank: the launcher has set no RANK")
    # Without what would bind a nested torchrun.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    rank = TorchRank(program, env)
    if "--elastic" in options:  # torchrun may kill what stands between, and start the next one
        rank.bind = die_with_parent
    return rank


class Wrapper:
    """A rank below torchrun or mpirun: gives it its own log and records its exit."""

    def __init__(
        self,
        program: Sequence[str],
        rank: int,
        folder: str,
        env: dict[str, str],
        work: str | None = None,
    ) -> None:
        self.program = list(program)
        self.rank = rank
        self.folder = folder
        self.env = env
        self.work = work
        self.began = time.monotonic()
        self.name = f"rank-{self.rank}"
        self.record_name = str(self.rank)
        self.group: Json | None = None  # what is known of the ranks it was started with
        self.asked = False  # to end, by its launcher
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
                env=self.env,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                close_fds=False,
                start_new_session=True,
                preexec_fn=self.bind,
            )
        except OSError as error:
            os.write(log, f"cannot execute {self.program[0]}: {error.strerror}\n".encode())
            return 127 << 8
        self.pid = process.pid
        self.forward()
        self.write({"name": self.name, "rank": self.rank, "pid": self.pid, "group": self.group})
        return os.waitpid(self.pid, 0)[1]

    bind: Callable[[], None] | None = None  # called in the process of the program, before it begins

    def forward(self) -> None:
        """Pass signals on to the program."""
        for name in FORWARDED:
            signal.signal(signal.Signals[name], self._pass_on)

    def _pass_on(self, number: int, _: object) -> None:
        self.asked = True
        os.kill(self.pid, number)

    def write(self, record: Json) -> None:
        """Tell the supervisor."""
        write_json(os.path.join(self.folder, "ranks", f"{self.record_name}.json"), record)

    def leave(self, status: int) -> None:
        """Wait until the launcher may see the end."""

    def finish(self, status: int) -> None:
        """Record how the program ended, and end in the same way."""
        elapsed = time.monotonic() - self.began
        record = exit_record(self.name, self.rank, self.pid, status, elapsed)
        # The launcher's own error file goes with the launcher.
        record["traceback"] = torch_error(self.env.get("TORCHELASTIC_ERROR_FILE", ""))
        record.update(group=self.group, asked=self.asked)
        self.write(record)
        self.leave(status)
        if os.WIFSIGNALED(status):
            import resource

            number = os.WTERMSIG(status)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(128 + number)
        os._exit(os.WEXITSTATUS(status))


class TorchRank(Wrapper):
    """A rank below torchrun, which may start it again: with other numbers, and other peers."""

    def __init__(self, program: Sequence[str], env: dict[str, str]) -> None:
        super().__init__(program, int(env["RANK"]), env["DT_NODE_DIR"], env)
        local_rank = env.get("LOCAL_RANK", env["RANK"])
        before = self._starts(local_rank)
        self.record_name = f"{local_rank}.{before}"
        self.group = {
            "local_rank": int(local_rank),
            "world_size": int(env.get("WORLD_SIZE", 0)),
            "nodes": int(env.get("GROUP_WORLD_SIZE", 0)),
            "restarts_left": int(env.get("TORCHELASTIC_MAX_RESTARTS", 0))
            - int(env.get("TORCHELASTIC_RESTART_COUNT", 0)),
        }
        self.env = {**env, "DT_RANK": str(self.rank)}
        if "GROUP_RANK" in env:  # the number of its node, as far as those before are still there
            self.env["NODE_RANK"] = env["GROUP_RANK"]
        if before:
            self._begin_anew(before)

    def _starts(self, local_rank: str) -> int:
        """Return how often torchrun has started this rank of the node before."""
        names = os.listdir(os.path.join(self.folder, "ranks"))
        return sum(name.startswith(f"{local_rank}.") and name.endswith(".json") for name in names)

    def _begin_anew(self, before: int) -> None:
        """Leave what earlier ranks of this number have left, but for their checkpoints."""
        self.name = f"rank-{self.rank}.restart-{before}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, "ranks", f"{self.rank}.groups"))
        if folder := self.env.get("DT_CHECKPOINT_DIR"):
            from .checkpoints import newest_checkpoint

            if newest := newest_checkpoint(folder)["checkpoint"]:
                self.env["DT_RESUME_FROM"] = newest["path"]


def die_with_parent() -> None:
    """Let the kernel kill this process with its parent, which a launcher may kill at any time."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
