"""Pack a source folder into a tar that depends on nothing but what the folder holds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import socket
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from distributed_training.errors import PlanError
from distributed_training.ignore import Ignore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

CHUNK = 1 << 18
# Neither of 1970, which zipfile refuses in any time zone, nor of the copy, which differs each time.
MTIME = 347_155_200  # 1981-01-01
# A folder that is left out is measured for the log only; it may hold millions of files.
MEASURED_ENTRIES = 5_000
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Excluded:
    """One entry that stayed at home, with all that it holds."""

    path: str
    size: int
    measured: bool  # False: it holds more than `size`

    def __str__(self) -> str:
        return f"{_shown(self.path)} ({'' if self.measured else 'more than '}{_amount(self.size)})"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A packed source folder; its tar is an unnamed file that goes when it is closed.

    ``size`` is the tar's, ``content_size`` that of the files in it. Without a ``source_dir`` it
    holds nothing but what was added.
    """

    source_dir: Path | None
    sha256: str
    size: int
    files: int
    content_size: int
    excluded: tuple[Excluded, ...]  # the largest first
    notes: tuple[str, ...]
    tar: IO[bytes] = field(repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tar.close()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the tar from its start; any number of hosts may read it at once."""
        for offset in range(0, self.size, CHUNK):
            yield os.pread(self.tar.fileno(), CHUNK, offset)

    def summary(self) -> str:
        """Say in one line what is sent, what is not, and what may surprise."""
        source = f"source {self.source_dir}" if self.source_dir else "source"
        sent = f"{source}: {self.files} files, {_amount(self.content_size)}"
        return "; ".join((sent, self._left_out(), *self.notes))

    def _left_out(self) -> str:
        if not self.excluded:
            return "nothing left out"
        shown, rest = self.excluded[:SHOWN], self.excluded[SHOWN:]
        names = [str(entry) for entry in shown]
        if rest:
            names.append(f"{len(rest)} more ({_amount(sum(entry.size for entry in rest))})")
        return f"left out: {', '.join(names)}"


def snapshot(source_dir: Path | None, package: Mapping[str, str] | None = None) -> Snapshot:
    """Pack a folder: the same names, modes and contents always give the same ``sha256``.

    :param package: texts of files to put beside what the folder holds, by path (``pkg/file.py``)
    :raises PlanError: the folder cannot be read, or has an entry of that name itself
    """
    root = _checked(source_dir) if source_dir else None
    with contextlib.ExitStack() as stack:
        tar = stack.enter_context(tempfile.TemporaryFile(buffering=0))
        packer = _Packer(_Tar(tar))
        packer.add_package(package or {})
        for entry, path, excluded in _walk(root) if root else ():
            packer.leave_out(entry, path) if excluded else packer.add(entry, path)
        packer.tar.finish()
        stack.pop_all()
    return packer.snapshot(source_dir)


def _checked(source_dir: Path) -> Path:
    where = f"source_dir {source_dir}, read on the Airflow worker {socket.gethostname()},"
    try:
        root = source_dir.expanduser().resolve(strict=True)
        home = Path(os.environ.get("HOME") or "/").resolve()
    except (OSError, RuntimeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise PlanError(f"{where} cannot be opened: {cause}. Name an existing folder.") from error
    if not root.is_dir():
        raise PlanError(f"{where} is not a folder. Name the folder that holds the script.")
    if home.is_relative_to(root):
        raise PlanError(
            f"{where} holds the whole home folder {home} of the user who runs Airflow, keys and "
            "passwords included. Name the folder of the training code alone."
        )
    return root


def _walk(root: Path) -> Iterator[tuple[os.DirEntry[str], str, bool]]:
    """Yield all entries in a fixed order, folders before their contents; True: left out."""
    folders = [("", Ignore.at(root))]
    while folders:
        base, ignore = folders.pop()
        for entry in _listing(root / base):
            path = base + entry.name
            folder = Path(entry.path) if entry.is_dir(follow_symlinks=False) else None
            excluded = ignore.excludes(path, folder)
            yield entry, path, excluded
            if folder and not excluded:
                folders.append((f"{path}/", ignore.inside(folder, f"{path}/")))


def _listing(folder: Path) -> list[os.DirEntry[str]]:
    with _reading(folder), os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: os.fsencode(entry.name))


class _Packer:
    """Writes entries into a tar, and keeps account of them."""

    def __init__(self, tar: _Tar) -> None:
        self.tar = tar
        self.files = 0
        self.content_size = 0
        self.excluded: list[Excluded] = []
        self.notes: list[str] = []
        self._taken: set[str] = set()  # names that are ours

    def add_package(self, files: Mapping[str, str]) -> None:
        for folder in sorted({posixpath.dirname(path) for path in files}):
            self.tar.add(folder, tarfile.DIRTYPE, mode=0o755)
            self._taken.add(folder)
        for path, text in files.items():
            data = text.encode()
            self.tar.add(path, tarfile.REGTYPE, mode=0o644, size=len(data))
            self.content_size += self.tar.write(data)
            self.tar.pad()
            self.files += 1

    def add(self, entry: os.DirEntry[str], path: str) -> None:
        if path in self._taken:
            raise PlanError(
                f"{_shown(entry.path)} has the name of what goes to the hosts beside it. Rename it "
                "or leave it out by a line in .trainignore."
            )
        with _reading(entry.path):
            if entry.is_symlink():
                self._add_link(entry, path)
            elif entry.is_dir():
                self.tar.add(path, tarfile.DIRTYPE, mode=entry.stat().st_mode)
            elif entry.is_file():
                self._add_file(entry, path)
            else:
                self.notes.append(f"skipped {_shown(path)}, neither file, folder nor link")

    def _add_link(self, entry: os.DirEntry[str], path: str) -> None:
        target = os.readlink(entry.path)  # noqa: PTH115 - Path would spell it differently
        self.tar.add(path, tarfile.SYMTYPE, mode=0o777, target=target)
        self.files += 1
        if _leaves(path, target):
            self.notes.append(
                f"{_shown(path)} is sent as a link to {_shown(target)}, outside the folder"
            )

    def _add_file(self, entry: os.DirEntry[str], path: str) -> None:
        with Path(entry.path).open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            self.tar.add(path, tarfile.REGTYPE, mode=before.st_mode, size=before.st_size)
            size = sum(map(self.tar.write, iter(lambda: file.read(CHUNK), b"")))
            after = os.fstat(file.fileno())
        if size != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
            raise PlanError(
                f"{_shown(entry.path)} changed while it was packed. Wait until it is written, or "
                "leave it out by a line in .trainignore."
            )
        self.tar.pad()
        self.files += 1
        self.content_size += size

    def leave_out(self, entry: os.DirEntry[str], path: str) -> None:
        with _reading(entry.path):
            if entry.is_dir(follow_symlinks=False):
                self.excluded.append(Excluded(f"{path}/", *_measure(entry.path)))
            else:
                size = entry.stat(follow_symlinks=False).st_size
                self.excluded.append(Excluded(path, size, measured=True))

    def snapshot(self, source_dir: Path | None) -> Snapshot:
        return Snapshot(
            source_dir=source_dir,
            sha256=self.tar.digest.hexdigest(),
            size=self.tar.size,
            files=self.files,
            content_size=self.content_size,
            excluded=tuple(sorted(self.excluded, key=lambda entry: (-entry.size, entry.path))),
            notes=tuple(self.notes),
            tar=self.tar.file,
        )


class _Tar:
    """An uncompressed GNU tar, hashed as it grows.

    GNU's format holds names as bytes, so that any name survives whatever locale the host has.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def add(self, path: str, kind: bytes, mode: int, size: int = 0, target: str = "") -> None:
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode & 0o777, size, target
        info.mtime = MTIME
        encoding = sys.getfilesystemencoding()
        self.write(info.tobuf(tarfile.GNU_FORMAT, encoding, "surrogateescape"))

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        with _writing():
            while left:
                left = left[self.file.write(left) :]
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def pad(self) -> None:
        self.write(bytes(-self.size % tarfile.BLOCKSIZE))

    def finish(self) -> None:
        self.write(bytes(2 * tarfile.BLOCKSIZE))
        self.file.seek(0)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlanError(
            f"The source cannot be packed into {tempfile.gettempdir()} on the Airflow worker: "
            f"{error.strerror}. Free some space there, or point TMPDIR elsewhere."
        ) from error


@contextlib.contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlanError(
            f"{_shown(str(path))} cannot be read: {error.strerror}. Make it readable for the user "
            "who runs the Airflow worker, or leave it out by a line in .trainignore."
        ) from error


def _measure(folder: str) -> tuple[int, bool]:
    """Return the size of a folder's files, and whether all of them could be looked at."""
    size, folders, left = 0, [folder], iter(range(MEASURED_ENTRIES))
    with contextlib.suppress(OSError):
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if next(left, None) is None:
                        return size, False
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
        return size, True
    return size, False


def _leaves(path: str, target: str) -> bool:
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return reached.startswith("/") or reached.split("/")[0] == ".."


def _shown(path: str) -> str:
    return path if path.isprintable() else ascii(path)


def _amount(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
