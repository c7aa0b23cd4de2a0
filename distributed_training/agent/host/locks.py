"""Locks that all users of a host share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from .files import read_json, umask
from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import Json


LOCK_FOLDER = os.environ.get("DT_LOCK_DIR") or "/tmp/.distributed_training"
LOCK_TRIES = 10  # an offer that looks at a lock holds it for an instant
INHERITED_FD = 200  # shell scripts use low descriptors for themselves, and would close a lock


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
    def take(cls, name: str, holder: Json) -> Lock | None:
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
    def holder(name: str) -> Json | None:
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
