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
    program = list(words[words.index("--") + 1 :])
    if words[0].startswith("--local-rank-at="):  # of the program's words: it ends in our number
        program[int(words[0].partition("=")[2])] += os.environ.get("LOCAL_RANK", "")
    if not os.environ.get("RANK"):
        sys.exit("agent rank: the launcher has set no RANK")
    # Without what would bind a nested torchrun.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    rank = int(env["RANK"])
    return Wrapper(program, rank, env["DT_NODE_DIR"], {**env, "DT_RANK": str(rank)})


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
        self.write({"name": self.name, "rank": self.rank, "pid": self.pid})
        return os.waitpid(self.pid, 0)[1]

    bind: Callable[[], None] | None = None  # called in the process of the program, before it begins

    def forward(self) -> None:
        """Pass signals on to the program."""
        for name in FORWARDED:
            signal.signal(signal.Signals[name], lambda number, _: os.kill(self.pid, number))

    def write(self, record: Json) -> None:
        """Tell the supervisor."""
        write_json(os.path.join(self.folder, "ranks", f"{self.rank}.json"), record)

    def leave(self, status: int) -> None:
        """Wait until the launcher may see the end."""

    def finish(self, status: int) -> None:
        """Record how the program ended, and end in the same way."""
        elapsed = time.monotonic() - self.began
        record = exit_record(self.name, self.rank, self.pid, status, elapsed)
        # The launcher's own error file goes with the launcher.
        record["traceback"] = torch_error(self.env.get("TORCHELASTIC_ERROR_FILE", ""))
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
