"""Which entries of a source folder stay at home: an ignore file's rules, read as git reads them."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pathspec import GitIgnoreSpec

from distributed_training.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

OURS, GIT = ".trainignore", ".gitignore"

# What no training needs, and every folder with a pyvenv.cfg, whatever .gitignore says.
DEFAULTS = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "*.pyc",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".DS_Store",
)

# A line of .trainignore takes a default along again only if it names it: `!*/` and `!*`, the usual
# way to say "nothing but the .py files", must not bring .git and the virtual environment.
NAMING = re.compile(r"!(?:.*/)?[^/]*\w[^/]*/?\s*")

# pathspec answers for an entry and for all folders above it at once; git, and a walk that skips
# whole folders, ask about one entry alone. So every path and every rule gets one more component,
# which no name can be: a rule then matches an entry itself or not at all.
FOLDER, FILE, EITHER = "/\0d", "/\0f", "/\0?"


@dataclass(frozen=True, slots=True)
class Level:
    """The rules of one ignore file, and the path of its folder within the source ("a/b/")."""

    base: str
    rules: GitIgnoreSpec
    names: GitIgnoreSpec

    def verdict(self, entry: str) -> bool | None:
        """Tell whether the file leaves an entry out (True), takes it (False), or is silent."""
        return self.rules.check_file(entry[len(self.base) :]).include

    def wants(self, entry: str) -> bool:
        """Tell whether the file asks by name for an entry that is left out by default."""
        return self.names.match_file(entry[len(self.base) :])


@dataclass(frozen=True, slots=True)
class Ignore:
    """The rules in force in one folder: those of its own ignore file, then of the folders above."""

    name: str
    levels: tuple[Level, ...] = ()

    @classmethod
    def at(cls, root: Path) -> Self:
        """Read the rules at the top of a source folder."""
        return cls(OURS if _holds(root, OURS) else GIT).inside(root, "")

    def inside(self, folder: Path, base: str) -> Self:
        """Return the rules for a folder, whose path within the source is ``base`` ("a/b/")."""
        if not _holds(folder, self.name):
            return self
        lines = _lines(folder / self.name)
        names = [line[1:] for line in lines if self.name == OURS and NAMING.fullmatch(line)]
        level = Level(_bytewise(base), _spec(lines), _spec(names))
        return type(self)(self.name, (level, *self.levels))

    def excludes(self, path: str, folder: Path | None) -> bool:
        """Tell whether an entry stays at home; ``folder`` is where it lies, if it is a folder."""
        entry = _bytewise(path) + (FOLDER if folder else FILE)
        verdicts = (level.verdict(entry) for level in self.levels)
        if next((verdict for verdict in verdicts if verdict is not None), False):
            return True
        return _by_default(entry, folder) and not any(level.wants(entry) for level in self.levels)


def _by_default(entry: str, folder: Path | None) -> bool:
    return _DEFAULTS.match_file(entry) or bool(folder and _holds(folder, "pyvenv.cfg"))


def _holds(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_file()
    except OSError:  # whoever lists the folder finds out, and tells
        return False


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_bytes().removeprefix(codecs.BOM_UTF8).decode("latin-1")
    except OSError as error:
        raise PlanError(
            f"{file} cannot be read ({error.strerror}), so it is unknown which files to send: "
            "make it readable for the user who runs the Airflow worker."
        ) from error
    return [line.removesuffix("\r") for line in text.split("\n")]


def _bytewise(path: str) -> str:
    """Return one character for each byte of a path: git's ``?`` is one byte, in any encoding."""
    return os.fsencode(path).decode("latin-1")


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    patterns: list[GitIgnoreSpecPattern] = []
    for rule in filter(None, map(_rule, lines)):
        with contextlib.suppress(ValueError):  # git, too, passes over a rule that cannot match
            patterns += GitIgnoreSpec.from_lines([rule]).patterns
    return GitIgnoreSpec(patterns)


def _rule(line: str) -> str:
    """Return a line as a rule about one entry alone, or "" if it holds none."""
    line = re.sub(r"(?<!\\) +$", "", line)
    sign, glob = ("!", line[1:]) if line.startswith("!") else ("", line)
    mark = FOLDER if glob.endswith("/") else EITHER
    glob = glob.removesuffix("/")
    if not glob or line.startswith("#"):
        return ""
    if "/" not in glob:
        glob = f"**/{glob}"
    if glob.endswith("/**"):
        glob += "/*"  # what is inside, not the folder itself
    return f"{sign}/{glob.removeprefix('/')}{mark}"


_DEFAULTS = _spec(DEFAULTS)
