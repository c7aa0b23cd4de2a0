"""Private keys and host keys, read once and used by both SSH libraries alike."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import asyncssh

from distributed_training.errors import PlanError
from distributed_training.transport.connections import Refusal

DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")
DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts"


def private_key(text: str, passphrase: str | None, name: str) -> asyncssh.SSHKey:
    """Return a private key; an error says what is wrong with ``name``, and nothing of the key."""
    try:
        key = _imported(_restored(text), passphrase or None)
        if re.match("ssh-rsa|ssh-ed25519|ecdsa-sha2-nistp", key.get_algorithm()):
            return key
        reason = ""  # paramiko cannot use it
    except ValueError as error:  # KeyImportError and KeyEncryptionError are of this kind
        reason = str(error)
    raise PlanError(f"{name}: {_what_is_wrong(reason)}")


def _what_is_wrong(reason: str) -> str:
    if "Passphrase must be" in reason:
        return "it is encrypted, and no passphrase is given; set private_key_passphrase"
    if "passphrase" in reason or "decrypt" in reason:
        return "the passphrase is wrong; correct private_key_passphrase"
    return (
        "it cannot be used; it must be an RSA, ECDSA or Ed25519 key in OpenSSH or PEM form, "
        "whole, from its BEGIN to its END line"
    )


@lru_cache(8)  # encrypted keys take a third of a second, by design; a fleet may have many hosts
def _imported(text: str, passphrase: str | None) -> asyncssh.SSHKey:
    return asyncssh.import_private_key(text, passphrase)


def key_file(path: str, passphrase: str | None) -> asyncssh.SSHKey:
    """Return the private key of a file on this machine."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise PlanError(
            f"key_file {file}: {why}; it must be readable where tasks and triggers run"
        ) from None
    return private_key(text, passphrase, f"key_file {file}")


def certificate_of(path: str) -> str | None:
    """Return the path of the certificate that lies beside a key file, if there is one."""
    certificate = Path(f"{path}-cert.pub").expanduser()
    if not certificate.exists():
        return None
    try:
        asyncssh.read_certificate(str(certificate))
    except (OSError, ValueError) as error:
        raise PlanError(
            f"the certificate {certificate} cannot be read ({error}); renew it, or move it away "
            "from the key"
        ) from None
    return str(certificate)


def default_keys(passphrase: str | None) -> list[asyncssh.SSHKey]:
    """Return the keys of ~/.ssh that can be used, as `look_for_keys` means it."""
    found = []
    for name in DEFAULT_KEYS:
        try:
            found.append(key_file(f"~/.ssh/{name}", passphrase))
        except PlanError:
            continue  # nobody asked for this one by name
    return found


def _restored(text: str) -> str:
    r"""Undo what JSON, shells and one-line form fields do to line ends: \n, \\n, blanks."""
    text = re.sub(r"\\+n", "\n", re.sub(r"\\+r", "", text)).strip() + "\n"
    match = re.fullmatch(r"(-----BEGIN [^-]+-----)([A-Za-z0-9+/= ]+)(-----END [^-]+-----)\n", text)
    if not match:
        return text
    body = match[2].replace(" ", "")
    lines = [body[start : start + 64] for start in range(0, len(body), 64)]
    return "\n".join([match[1], *lines, match[3], ""])


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The keys that a host may show.

    :param trusted: each as ``ssh-ed25519 AAAA…``; None: any
    :param revoked: never to be accepted
    :param source: what names them, for messages
    """

    trusted: tuple[str, ...] | None
    revoked: tuple[str, ...] = ()
    source: str = "host_key"

    @property
    def algorithms(self) -> list[str] | None:
        """Return the signature algorithms of the trusted keys; None if any will do."""
        if not self.trusted:
            return None
        found = [algorithm for key in self.trusted for algorithm in _algorithms(key.split()[0])]
        return list(dict.fromkeys(found))

    def refusal(self, shown: str, target: str) -> Refusal | None:
        """Return why a key that a host shows is not accepted, or None if it is."""
        if shown in self.revoked:
            advice = "log in to the host another way and renew its key"
            return Refusal(f"its host key {fingerprint(shown)} is revoked in {self.source}", advice)
        if self.trusted is None or shown in self.trusted:
            return None
        if self.trusted:
            return Refusal(
                f"it shows host key {fingerprint(shown)}, but {self.source} has "
                f"{', '.join(fingerprint(key) for key in self.trusted)}",
                "the host was installed anew, or something in between poses as it; correct "
                "the key once you know which",
            )
        return Refusal(
            f"its host key {fingerprint(shown)} is unknown: {self.source} has none of {target}",
            "compare it with `ssh-keygen -lf` of the host's /etc/ssh/ssh_host_*_key.pub, then "
            "write it as host_key= in the host list, or add it to known_hosts",
        )


def _algorithms(kind: str) -> list[str]:
    return ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]


def fingerprint(key: str) -> str:
    """Return a public key as ssh-keygen -l shows it."""
    kind, data = key.split()
    digest = hashlib.sha256(base64.b64decode(data + "==")).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def known_name(host: str, port: int) -> str:
    """Return what known_hosts calls a host."""
    return host if port == 22 else f"[{host}]:{port}"


def known_keys(known_hosts: str | None, host: str, port: int) -> HostKeys:
    """Return what is known of a host.

    :param known_hosts: a path, or the lines themselves; None: ~/.ssh/known_hosts if it exists
    """
    text, source = _known_hosts(known_hosts)
    try:
        # Without a port of its own, so that a key of host:22 is not taken for one of host:2222.
        found = asyncssh.import_known_hosts(text).match(known_name(host, port), "", None)
    except ValueError as error:
        raise PlanError(f"{source}: {error}") from None
    trusted, _, revoked = (tuple(map(public_text, keys)) for keys in found[:3])
    return HostKeys(trusted, revoked, source)


def _known_hosts(known_hosts: str | None) -> tuple[str, str]:
    if known_hosts and re.search(r"\s(ssh-|ecdsa-|sk-)\S", known_hosts):
        return re.sub(r"\\+n", "\n", known_hosts), "known_hosts"
    path = Path(known_hosts or DEFAULT_KNOWN_HOSTS).expanduser()
    if not known_hosts and not path.exists():
        return "", f"{path}, which does not exist,"
    try:
        return path.read_text(encoding="utf-8", errors="replace"), str(path)
    except OSError as error:
        raise PlanError(
            f"known_hosts {path}: {error.strerror}; it must be readable where tasks and triggers "
            "run, or hold the lines themselves"
        ) from None


def public_text(key: asyncssh.SSHKey) -> str:
    """Return a public key as ``ssh-ed25519 AAAA…``."""
    return " ".join(key.export_public_key("openssh").decode().split()[:2])
