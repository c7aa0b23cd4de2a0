"""Ways to prove who we are: every form of key, passphrases, agents, passwords."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from distributed_training.errors import HostUnreachable, PlanError, TrainingError
from tests.ways import way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fleet import Fleet

PASSPHRASE = "open sesame"
FORMS = {
    "OpenSSH ed25519 with passphrase": ["-t", "ed25519", "-N", PASSPHRASE],
    "OpenSSH RSA": ["-t", "rsa", "-b", "2048", "-N", ""],
    "OpenSSH ECDSA": ["-t", "ecdsa", "-b", "384", "-N", ""],
    "PEM RSA": ["-t", "rsa", "-b", "2048", "-m", "PEM", "-N", ""],
    "PEM RSA with passphrase": ["-t", "rsa", "-b", "2048", "-m", "PEM", "-N", PASSPHRASE],
    "PKCS8 RSA": ["-t", "rsa", "-b", "2048", "-m", "PKCS8", "-N", ""],
}


def make_key(path: Path, form: str) -> str:
    make = ["ssh-keygen", "-q", *FORMS[form], "-f", str(path)]
    subprocess.run(make, check=True, capture_output=True)
    return path.read_text()


@pytest.fixture(scope="module")
def keys(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A key of each form, all of which may log in."""
    folder = tmp_path_factory.mktemp("keys")
    paths = {form: folder / form.replace(" ", "-") for form in FORMS}
    for form, path in paths.items():
        make_key(path, form)
        fleet["gpu1"].authorize(path.with_suffix(".pub").read_text().strip())
    return paths


@pytest.fixture
def log_in(library: str, fleet: Fleet) -> Callable[..., str]:
    """Log in with the given extras and no other key; return what came of it."""

    def attempt(password: str | None = None, **extra: Any) -> str:
        connection = fleet.connection(**extra)
        if "key_file" not in extra:
            del connection["extra"]["key_file"]
        return asyncio.run(said(library, {**connection, "password": password}))

    return attempt


async def said(library: str, connection: dict[str, Any]) -> str:
    async with way(library, connection) as transport:
        return (await transport.run("echo in")).stdout.decode().strip()


def as_it_is(text: str) -> str:
    return text


def escaped_once(text: str) -> str:
    return text.replace("\n", "\\n")


def escaped_twice(text: str) -> str:
    return text.replace("\n", "\\\\n")


def with_windows_ends(text: str) -> str:
    return text.replace("\n", "\r\n")


def on_one_line(text: str) -> str:
    return text.replace("\n", "")


@pytest.mark.parametrize("form", FORMS)
def test_an_inline_key_lets_in(
    log_in: Callable[..., str], keys: dict[str, Path], form: str
) -> None:
    """B14."""
    assert log_in(private_key=keys[form].read_text(), private_key_passphrase=PASSPHRASE) == "in"


@pytest.mark.parametrize(
    "mangle", [as_it_is, escaped_once, escaped_twice, with_windows_ends, on_one_line]
)
def test_a_mangled_key_lets_in(
    log_in: Callable[..., str], keys: dict[str, Path], mangle: Callable[[str], str]
) -> None:
    """B14: JSON in an environment variable and one-line form fields do this."""
    assert log_in(private_key=mangle(keys["OpenSSH RSA"].read_text())) == "in"


@pytest.mark.parametrize("form", FORMS)
def test_a_key_file_lets_in(log_in: Callable[..., str], keys: dict[str, Path], form: str) -> None:
    assert log_in(key_file=str(keys[form]), private_key_passphrase=PASSPHRASE) == "in"


def test_a_password_may_open_a_key_file(log_in: Callable[..., str], keys: dict[str, Path]) -> None:
    """As paramiko does where there is no passphrase."""
    file = keys["OpenSSH ed25519 with passphrase"]
    assert log_in(password=PASSPHRASE, key_file=str(file)) == "in"


def test_the_keys_of_the_home_let_in_if_asked_for(
    log_in: Callable[..., str], keys: dict[str, Path], home: Path
) -> None:
    (home / ".ssh/id_rsa").write_text(keys["OpenSSH RSA"].read_text())
    (home / ".ssh/id_ed25519").write_text("not a key")
    assert log_in() == "in"
    with pytest.raises(HostUnreachable, match="there is nothing to log in with"):
        log_in(look_for_keys=False)


@pytest.fixture
def agent(keys: dict[str, Path], home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An SSH agent that holds a key."""
    socket = home / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    process.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    subprocess.run(["ssh-add", "-q", str(keys["OpenSSH ECDSA"])], check=True, capture_output=True)
    yield
    process.terminate()
    process.communicate()


@pytest.mark.usefixtures("agent")
def test_the_keys_of_an_agent_let_in(log_in: Callable[..., str]) -> None:
    assert log_in(look_for_keys=False) == "in"


def test_a_certificate_beside_the_key_file_lets_in(
    log_in: Callable[..., str], fleet: Fleet, tmp_path: Path
) -> None:
    host, user = fleet["gpu1"], tmp_path / "user"
    make_key(tmp_path / "authority", "OpenSSH RSA")
    make_key(user, "PEM RSA")
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "authority"), "-I", "x", "-n", host.user]
    subprocess.run([*sign, str(user.with_suffix(".pub"))], check=True, capture_output=True)
    (tmp_path / "plain").write_text(user.read_text())
    with pytest.raises(HostUnreachable, match="it refuses the login"):
        log_in(key_file=str(tmp_path / "plain"))
    host.authorize(f"cert-authority {(tmp_path / 'authority.pub').read_text().strip()}")
    assert log_in(key_file=str(user)) == "in"


def test_a_certificate_that_cannot_be_read_is_named(
    log_in: Callable[..., str], tmp_path: Path
) -> None:
    make_key(tmp_path / "user", "OpenSSH RSA")
    (tmp_path / "user-cert.pub").write_text("nonsense")
    with pytest.raises(PlanError, match=r"the certificate .*user-cert.pub cannot be read"):
        log_in(key_file=str(tmp_path / "user"))


def test_a_password_lets_in(library: str, make_fleet: Callable[[int], Fleet]) -> None:
    """B21: without a terminal."""
    fleet = make_fleet(1)
    fleet["gpu1"].set_password("pässword $1 ")
    connection = {**fleet.connection(), "password": "pässword $1 "}
    del connection["extra"]["key_file"]
    with pytest.raises(HostUnreachable, match="it refuses the login"):
        asyncio.run(said(library, {**connection, "password": "wrong"}))
    fleet["gpu1"].set_password("pässword $1")
    assert asyncio.run(said(library, connection)) == "in"


def test_a_stranger_is_refused_once(
    log_in: Callable[..., str], fleet: Fleet, tmp_path: Path
) -> None:
    """Another try would only lock the account."""
    text = make_key(tmp_path / "stranger", "OpenSSH RSA")
    failures = fleet["gpu1"].log.read_text().count("Connection closed by authenticating user")
    with pytest.raises(HostUnreachable) as caught:
        log_in(private_key=text)
    assert "it refuses the login" in caught.value.message
    assert "check the login and the password or key" in caught.value.message
    tries = fleet["gpu1"].log.read_text().count("Connection closed by authenticating user")
    assert tries <= failures + 1


WHOLE = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0c2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"private_key": "c2VjcmV0c2VjcmV0"}, "from its BEGIN to its END line"),
        ({"private_key": WHOLE}, "from its BEGIN to its END line"),
        ({"private_key": WHOLE.replace("OPENSSH", "DSA")}, "an RSA, ECDSA or Ed25519 key"),
        ({"key_file": "/none/here"}, "key_file /none/here: No such file"),
        ({"private_key": WHOLE, "key_file": "/none"}, "are both given"),
    ],
)
def test_a_bad_key_is_told_without_its_text(
    log_in: Callable[..., str], extra: dict[str, str], why: str
) -> None:
    """B14, B21."""
    with pytest.raises(PlanError) as caught:
        log_in(**extra)
    assert why in caught.value.message
    assert "c2VjcmV0" not in everything_in(caught.value)


@pytest.mark.parametrize("form", ["OpenSSH ed25519 with passphrase", "PEM RSA with passphrase"])
def test_a_wrong_passphrase_is_told_as_such(
    log_in: Callable[..., str], keys: dict[str, Path], form: str
) -> None:
    text, wrong = keys[form].read_text(), "guess4321"
    with pytest.raises(PlanError, match="encrypted, and no passphrase is given"):
        log_in(private_key=text)
    with pytest.raises(PlanError, match="the passphrase is wrong") as caught:
        log_in(private_key=text, private_key_passphrase=wrong)
    assert wrong not in everything_in(caught.value)


def everything_in(error: TrainingError) -> str:
    """Return what a log would show of an error and its causes."""
    return "".join(logging.Formatter().formatException((type(error), error, error.__traceback__)))


def test_no_secret_is_logged(
    log_in: Callable[..., str], keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = keys["PEM RSA with passphrase"].read_text()
    log_in(private_key=text, private_key_passphrase=PASSPHRASE, password="hunter2")
    secrets = [PASSPHRASE, "hunter2", *re.findall("[A-Za-z0-9+/]{40,}", text)]
    assert not [secret for secret in secrets if secret in caplog.text]
