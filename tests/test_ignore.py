"""The ignore rules, compared with git itself and with what the documentation promises."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributed_training.ignore import DEFAULTS
from distributed_training.snapshot import snapshot

NAMES = ["a", "b", "ab", "a.b", "c.py", "foo", "x y", " t", "b ", "#h", "!n", "[z]", "é", "é\udcff"]
GLOBS = ["a", "b", "ab", "foo", "x y", " t", "é", "*", "**", "?", "*.py", "*.*", "a*", "*b", "f?o"]
GLOBS += ["[ab]", "[a-c]", "[!a]", "[^b]*", "[]a]", r"\#h", r"\!n", r"\[z\]", "b\\ ", r"*\ "]

paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
globs = st.lists(st.sampled_from(GLOBS), min_size=1, max_size=3).map("/".join)
rules = st.tuples(
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "/"]),
    globs,
    st.sampled_from(["", "/", " ", "\r"]),
).map("".join)
texts = st.lists(st.one_of(rules, st.sampled_from(["# note", "", "!"])), max_size=5).map("\n".join)
places = st.sampled_from(["", "", "a/", "ab/", "a/b/", "foo/"])


@settings(deadline=None, max_examples=80)
@given(st.sets(paths, min_size=1, max_size=15), st.dictionaries(places, texts, min_size=1))
@example({"a/b.py", "a/c.txt", "d"}, {"": "*\n!*/\n!*.py"})
@example({"a/b/x.tmp"}, {"": "*.tmp", "a/": "!b/"})
@example({"data/keep", "data/x"}, {"": "data/\n!data/keep"})
@example({"foo/x", "foo/keep"}, {"": "foo/**\n!foo/keep"})
@example({"a", "b"}, {"": "\ufeffa"})
def test_gitignore_means_what_it_means_to_git(files: set[str], ignores: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in sorted(files):
            lay(root, path)
        for place, text in ignores.items():
            lay(root, f"{place}.gitignore", text)
        assert kept(root) == kept_by_git(root)


@pytest.mark.parametrize("name", [name.replace("*", "x") for name in DEFAULTS])
def test_what_no_training_needs_stays_at_home(tmp_path: Path, name: str) -> None:
    """B91."""
    lay(tmp_path, f"a/{name}")
    lay(tmp_path, "a/train.py")
    assert kept(tmp_path) == ["a/train.py"]


def test_a_virtual_environment_is_known_by_what_it_holds(tmp_path: Path) -> None:
    """B91."""
    for path in (".venv/pyvenv.cfg", "py311/pyvenv.cfg", "venv/model.py"):
        lay(tmp_path, path)
    assert kept(tmp_path) == ["venv/model.py"]


def test_trainignore_replaces_gitignore_in_every_folder(tmp_path: Path) -> None:
    """B91."""
    lay(tmp_path, ".gitignore", "data/")
    lay(tmp_path, "a/.gitignore", "*")
    lay(tmp_path, "a/.trainignore", "*.ckpt")
    lay(tmp_path, ".trainignore", "")
    for path in ("data/x", "a/b", "a/c.ckpt"):
        lay(tmp_path, path)
    assert {"data/x", "a/b"} <= set(kept(tmp_path))
    assert "a/c.ckpt" not in kept(tmp_path)


@pytest.mark.parametrize("line", ["!node_modules", "!/a/node_modules/", "!a/node*"])
def test_trainignore_takes_a_default_along_by_name(tmp_path: Path, line: str) -> None:
    """B91."""
    lay(tmp_path, ".trainignore", line)
    lay(tmp_path, "a/node_modules/x.js")
    assert "a/node_modules/x.js" in kept(tmp_path)


@pytest.mark.parametrize("line", ["!*", "!*/", "!**", "!/*/", "!**/*"])
def test_a_line_of_wildcards_takes_no_default_along(tmp_path: Path, line: str) -> None:
    lay(tmp_path, ".trainignore", f"*\n{line}\n!*.py")
    for path in (".venv/pyvenv.cfg", ".venv/lib/x.py", ".git/x.py", "a/b.py"):
        lay(tmp_path, path)
    assert [path for path in kept(tmp_path) if path.endswith(".py")] == ["a/b.py"]


def test_gitignore_cannot_take_a_default_along(tmp_path: Path) -> None:
    lay(tmp_path, ".gitignore", "!.venv")
    lay(tmp_path, ".venv/pyvenv.cfg")
    assert kept(tmp_path) == [".gitignore"]


def test_a_later_line_narrows_what_was_taken_along(tmp_path: Path) -> None:
    lay(tmp_path, ".trainignore", "!.git\n.git/objects")
    lay(tmp_path, ".git/HEAD")
    lay(tmp_path, ".git/objects/pack")
    assert kept(tmp_path) == [".git/HEAD", ".trainignore"]


def lay(root: Path, path: str, text: str = "") -> None:
    """Write a file, unless its path is a folder's, or one of its folders is a file."""
    file = root / path
    if any(parent.is_file() for parent in file.parents) or file.is_dir():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.fsencode(text))


def kept(root: Path) -> list[str]:
    """List the files that are sent."""
    with snapshot(root) as source, tarfile.open(fileobj=source.tar) as tar:
        return sorted(member.name for member in tar if not member.isdir())


def kept_by_git(root: Path) -> list[str]:
    """List the files that git would add."""
    git = ["git", "-c", "core.excludesFile=", "-C", str(root)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    listing = [*git, "ls-files", "-co", "-z", "--exclude-standard"]
    output = subprocess.run(listing, check=True, stdout=subprocess.PIPE).stdout
    return sorted(os.fsdecode(name) for name in output.split(b"\0") if name)
