"""Each way to run a command, and hosts whose sshd a test may set up as it likes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.ways import LIBRARIES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fleet import Fleet
    from tests.fleet.host import Host


class SetUp(Protocol):
    """Restart a host's sshd with options, until the test ends."""

    def __call__(self, host: Host, **options: str) -> None:
        """Set options of a host, by their names in sshd_config."""
        ...


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """The SSH library in use; what holds for one holds for the other."""
    name: str = request.param
    return name


@pytest.fixture
def sshd(fleet: Fleet) -> Iterator[SetUp]:
    """Restart an sshd with options, and take them back."""
    changed: list[tuple[Host, dict[str, str]]] = []

    def set_up(host: Host, **options: str) -> None:
        usual = {**host.own.options, "Port": str(host.port)}
        before = {name: usual.get(name, "") for name in options}
        changed.append((host, before))
        host.restart_sshd(**options)

    yield set_up
    for host, before in reversed(changed):
        host.restart_sshd(**before)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without keys, agent or known hosts, as a worker in a container has it."""
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def rsa_key(fleet: Fleet, tmp_path: Path) -> str:
    """An RSA key that may log in."""
    path = tmp_path / "rsa"
    make = ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(path)]
    subprocess.run(make, check=True, capture_output=True)
    fleet["gpu1"].authorize(path.with_suffix(".pub").read_text().strip())
    return path.read_text()
