"""Files and folders: read, written whole, measured, removed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat

from .records import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Json


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


def open_plain(path: str) -> int:
    """Open what must be a file: a pipe would keep us for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a file")
    return fd


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


def disk_free(path: str) -> int:
    """Return the bytes that this user may still write where a path is or will be."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize


def link_of(path: str) -> str:
    """Return what a link says, empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""
