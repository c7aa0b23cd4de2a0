"""Files of a node, sent as a tar stream."""

from __future__ import annotations

import os
import stat
import sys

from ..node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..call import Call
    from ..records import Json


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
        self.found: dict[str, str] = {}  # the names of what was asked for
        self.entries: dict[str, str] = {}  # the paths of all files and folders in it, by name
        self.faults: list[Json] = []

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

    def _gather(self, path: str, name: str, above: frozenset[tuple[int, int]]) -> None:
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
