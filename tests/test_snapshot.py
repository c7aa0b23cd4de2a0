"""What a snapshot holds, when it is the same one, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import shutil
import socket
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributed_training import snapshot as module
from distributed_training.errors import PlanError
from distributed_training.snapshot import CHUNK, Snapshot, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65534


@pytest.fixture
def source() -> Iterator[Path]:
    """A small source folder of every kind of entry, which any user may read."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "pkg").mkdir()
        (root / "pkg" / "model.py").write_text("layers = 3\n")
        (root / "run.sh").write_text("#!/bin/sh\n")
        (root / "run.sh").chmod(0o755)
        (root / "link").symlink_to("nowhere")
        (root / "empty").mkdir()
        yield root


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Drop root's rights for a while: root can read everything."""
    user = os.geteuid()
    os.seteuid(user or NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_the_same_content_gives_the_same_hash(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for path in sorted(source.iterdir(), reverse=True):  # made in another order, at another time
        if path.is_dir():
            shutil.copytree(path, copy / path.name, symlinks=True)
        else:
            shutil.copy(path, copy / path.name, follow_symlinks=False)
    os.utime(copy / "run.sh", (1, 1))
    assert digest(copy) == digest(source)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "pkg/model.py").write_text("layers = 4\n"),
        lambda root: (root / "run.sh").chmod(0o644),
        lambda root: (root / "empty").rmdir(),
        lambda root: (root / "empty").chmod(0o555),
        lambda root: (root / "run.sh").rename(root / "start.sh"),
        lambda root: ((root / "link").unlink(), (root / "link").symlink_to("elsewhere")),
    ],
    ids=["content", "mode", "folder", "mode of a folder", "name", "link"],
)
def test_any_change_gives_another_hash(source: Path, change: Callable[[Path], object]) -> None:
    before = digest(source)
    change(source)
    assert digest(source) != before


def test_links_stay_links_and_a_dangling_one_stops_nothing(source: Path, tmp_path: Path) -> None:
    """B87."""
    (source / "code").symlink_to("pkg")
    unpacked = unpack(source, tmp_path)
    assert (unpacked / "link").readlink() == Path("nowhere")
    assert (unpacked / "code").readlink() == Path("pkg")
    assert (unpacked / "code" / "model.py").read_text() == "layers = 3\n"


@pytest.mark.parametrize("target", ["/mnt/data", "../data", "pkg/../../data"])
def test_a_link_out_of_the_folder_is_sent_and_told(source: Path, target: str) -> None:
    (source / "data").symlink_to(target)
    with snapshot(source) as packed:
        assert f"data is sent as a link to {target}, outside the folder" in packed.summary()


def test_modes_survive(source: Path, tmp_path: Path) -> None:
    """B89."""
    (source / "secret").touch(mode=0o600)
    (source / "fixed").mkdir()
    (source / "fixed" / "table").touch()
    (source / "fixed").chmod(0o555)
    unpacked = unpack(source, tmp_path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in unpacked.iterdir() if path.exists()}
    assert (modes["run.sh"], modes["secret"], modes["fixed"]) == (0o755, 0o600, 0o555)
    assert (unpacked / "fixed" / "table").exists()
    (unpacked / "fixed").chmod(0o755)
    (source / "fixed").chmod(0o755)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(b"caf\xe9", id="latin-1"),
        pytest.param("ü ñ 漢".encode(), id="utf-8"),
        pytest.param(b"two\nlines", id="newline"),
        pytest.param(b" -rf *", id="blanks"),
        pytest.param(b"x" * 255, id="long"),
        pytest.param(b"d" * 200 + b"/" + b"f" * 200, id="long folder"),
    ],
)
def test_any_name_survives(source: Path, tmp_path: Path, name: bytes) -> None:
    file = source / os.fsdecode(name)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(name)
    assert (unpack(source, tmp_path) / os.fsdecode(name)).read_bytes() == name


def test_an_unpacked_snapshot_gives_the_same_snapshot(source: Path, tmp_path: Path) -> None:
    assert digest(unpack(source, tmp_path)) == digest(source)


def test_two_hosts_read_one_snapshot_at_once(source: Path) -> None:
    (source / "weights").write_bytes(os.urandom(3 * CHUNK + 7))

    async def both(packed: Snapshot) -> list[bytes]:
        first, second = packed.stream(), packed.stream()
        pairs = [(chunk, await anext(second)) async for chunk in first]
        return [b"".join(chunks) for chunks in zip(*pairs, strict=True)]

    with snapshot(source) as packed:
        first, second = asyncio.run(both(packed))
    assert first == second
    assert (len(first), hashlib.sha256(first).hexdigest()) == (packed.size, packed.sha256)


def test_the_summary_tells_what_is_sent_and_what_is_not(source: Path) -> None:
    """B91."""
    for path, size in ((".git/pack", 50_000_000), (".venv/pyvenv.cfg", 5_000), ("data/x", 7_100)):
        (source / path).parent.mkdir()
        (source / path).touch()
        os.truncate(source / path, size)
    (source / ".gitignore").write_text("data/\n")
    with snapshot(source) as packed:
        assert packed.summary() == (
            f"source {source}: 4 files, 27 B; "
            "left out: .git/ (50.0 MB), data/ (7.1 kB), .venv/ (5.0 kB)"
        )


def test_the_summary_names_the_largest_and_counts_the_rest(source: Path) -> None:
    (source / ".gitignore").write_text("*.ckpt\n")
    for number in range(1, 8):
        (source / f"{number}.ckpt").write_bytes(b"x" * number)
    with snapshot(source) as packed:
        left_out = packed.summary().partition("left out: ")[2]
    names = "7.ckpt (7 B), 6.ckpt (6 B), 5.ckpt (5 B), 4.ckpt (4 B), 3.ckpt (3 B)"
    assert left_out == f"{names}, 2 more (3 B)"


def test_a_huge_folder_that_is_left_out_costs_little(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEASURED_ENTRIES", 3)
    (source / ".git").mkdir()
    for name in "abcde":
        (source / ".git" / name).write_text("12")
    with snapshot(source) as packed:
        assert "left out: .git/ (more than 6 B)" in packed.summary()


def test_what_is_no_file_is_skipped_and_told(source: Path) -> None:
    os.mkfifo(source / "pipe")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(source / "socket"))
        with snapshot(source) as packed:
            summary = packed.summary()
    assert "skipped pipe, neither file, folder nor link" in summary
    assert "skipped socket, neither file, folder nor link" in summary


@pytest.mark.parametrize("name", ["run.sh", "empty", ".gitignore"])
def test_what_cannot_be_read_is_named(source: Path, name: str) -> None:
    (source / name).touch()
    (source / name).chmod(0)
    with ordinary_user(), pytest.raises(PlanError) as error:
        snapshot(source)
    assert f"{source / name} cannot be read" in error.value.message
    assert "Permission denied" in error.value.message


def test_a_file_that_changes_meanwhile_is_an_error(source: Path) -> None:
    log = source / "train.log"
    log.touch()
    os.truncate(log, 50_000_000)
    done = threading.Event()

    def write() -> None:
        with log.open("ab", buffering=0) as file:
            while not done.is_set():
                file.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(PlanError, match=r"train\.log changed while it was packed"):
            snapshot(source)
    finally:
        done.set()
        writer.join()


def test_a_full_disk_is_told_as_such(source: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(PlanError, match=r"cannot be packed into .* point TMPDIR elsewhere"):
            snapshot(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_nothing_is_left_behind_even_while_it_is_in_use(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with snapshot(source):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "cannot be opened: No such file or directory"),
        ("run.sh", "is not a folder"),
        ("loop", "cannot be opened"),
        ("home", "holds the whole home folder"),
        (".", "holds the whole home folder"),
        ("/", "holds the whole home folder"),
    ],
)
def test_a_wrong_source_dir_is_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    (source / "loop").symlink_to("loop")
    (source / "home").mkdir()
    monkeypatch.setenv("HOME", str(source / "home"))
    with pytest.raises(PlanError, match=message) as error:
        snapshot(source / path)
    assert f"source_dir {source / path}" in error.value.message


def test_a_tilde_is_the_home_of_who_runs_the_task(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    assert digest(Path("~", source.name)) == digest(source)


def digest(root: Path) -> str:
    with snapshot(root) as packed:
        return packed.sha256


def unpack(root: Path, to: Path) -> Path:
    with snapshot(root) as packed, tarfile.open(fileobj=packed.tar) as tar:
        tar.extractall(to / "unpacked", filter="fully_trusted")
    return to / "unpacked"
