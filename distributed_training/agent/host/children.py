"""Child processes: programs, forks, and what outlives a call."""

from __future__ import annotations

import contextlib
import os

from . import bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def spawn(
    argv: Sequence[str], env: dict[str, str], work: str, log: str, keep: Sequence[int] = ()
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


def scrubbed(patterns: Sequence[str]) -> dict[str, str]:
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
        close_all_but([*keep, *bundle.descriptors()], errors)
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
