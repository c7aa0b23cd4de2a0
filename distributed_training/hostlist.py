"""Host lists taken apart: where each entry stands, its first word, the values it gives."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed_training.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Entry(NamedTuple):
    """One line, or one object of JSON."""

    where: str
    head: str
    pairs: list[tuple[str, Any]]


def host_entries(hosts: str | Sequence[Mapping[str, object] | str], source: str) -> Iterable[Entry]:
    """Return the entries of a list: lines, JSON text, or objects and lines."""
    if not isinstance(hosts, str):
        return _object_entries(hosts, source)
    return _json_entries(hosts, source) if _JSON.match(hosts) else _line_entries(hosts, source)


# A list of objects or strings; "[::1] slots=2" is a line.
_JSON = re.compile(r"\s*(\{|\[\s*[\[{\"\]])")
_WORD = r"""(?:[^\s"'=]|"[^"]*"|'[^']*')"""
_TOKEN = re.compile(
    rf"""\s*(?:(?P<comment>\#.*)
      |(?P<key>[A-Za-z_][\w-]*)\s*=\s*(?P<value>(?:{_WORD}|=)*)
      |(?P<word>{_WORD}+))""",
    re.VERBOSE,
)
_SECRET = re.compile(r"(?i)(\w*(?:pass|secret|token|private|identity|key_?file)\w*\s*=\s*)\S.*")


def _line_entries(text: str, source: str) -> Iterable[Entry]:
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        shown = _SECRET.sub(r"\1***", line.strip())
        if entry := _line_entry(line.strip(), f"{source}, line {number} ({shown!r})"):
            yield entry


def _line_entry(line: str, where: str) -> Entry | None:
    words: list[str] = []
    pairs: list[tuple[str, Any]] = []
    position = 0
    while position < len(line):
        match = _TOKEN.match(line, position)
        if not match:
            raise PlanError(f"{where}: {_unreadable(line[position:].strip())}")
        position = match.end()
        if match["key"]:
            pairs.append((match["key"], re.sub("[\"']", "", match["value"])))
        elif match["word"]:
            _expect_name(where, words, pairs, match["word"])
            words.append(match["word"])
    if pairs and not words:
        raise PlanError(f"{where}: a host's name is missing; it comes first, as in 'gpu1 slots=8'")
    return Entry(where, "".join(words), pairs) if words else None


def _expect_name(where: str, words: list[str], pairs: list[tuple[str, Any]], word: str) -> None:
    """Refuse a second word, except in "a:4, b:4"."""
    if pairs or (words and not words[-1].endswith(",")):
        raise PlanError(
            f"{where}: {word!r} is not key=value; write one host a line, "
            "and put a value with blanks in quotes"
        )


def _unreadable(rest: str) -> str:
    if rest[0] in "\"'":
        return f"the quote in {rest[:20]!r} is never closed"
    return f"{rest[:20]!r} is not key=value"


_NAMES = ("name", "host", "hostname")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object that still has the keys given twice."""


def _json_entries(text: str, source: str) -> Iterable[Entry]:
    try:
        entries = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError as error:
        raise PlanError(f"{source}: this is not the JSON that it starts as: {error}") from None
    if isinstance(entries, _Pairs):
        raise PlanError(f'{source}: a JSON list is needed, [{{"name": "gpu1"}}, …]')
    return _object_entries(entries, source)


def _object_entries(entries: Iterable[object], source: str) -> Iterable[Entry]:
    for number, entry in enumerate(entries, 1):
        where = f"{source}, entry {number}"
        if isinstance(entry, str):
            yield from _line_entries(entry, where)
        else:
            yield _object_entry(entry, where)


def _object_entry(entry: object, where: str) -> Entry:
    if not isinstance(entry, (_Pairs, Mapping)):
        kind = type(entry).__name__
        raise PlanError(f"{where}: a host is an object or a line of text, not {kind}")
    pairs = list(entry.items() if isinstance(entry, Mapping) else entry)
    # The name goes into the message whatever the key is called, so that the entry is found.
    label = next((value for key, value in pairs if key in _NAMES and value), None)
    where = f"{where} ({label!r})" if isinstance(label, str) else where
    names = [value for key, value in pairs if key == "name"]
    if len(names) > 1 or not all(isinstance(name, str) for name in names):
        raise PlanError(f"{where}: name must be given once, as text")
    return Entry(where, "".join(names), [pair for pair in pairs if pair[0] != "name"])


# --- values

ADDRESS = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
IPV6 = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?"
USER = r"""(?!-)[^\s"'#,=:\[\]\x00-\x1f\x7f]+"""


def host_values(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the checked values of an entry; ``ValueError`` says what is wrong with one."""
    values: dict[str, Any] = {}
    unknown = [key for key, _ in pairs if key.replace("-", "_") not in _READERS]
    if unknown:
        raise ValueError(_unknown_key(min(unknown, key=lambda key: not _is_secret(key))))
    for written, value in pairs:
        key = written.replace("-", "_")
        if key in values:
            raise ValueError(f"{key} is given twice")
        if value is None:
            continue  # null leaves a value open, as leaving out the key does
        try:
            values[key] = _READERS[key](value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return values


def _is_secret(key: str) -> bool:
    return bool(_SECRET.match(f"{key}=x"))


def _unknown_key(key: str) -> str:
    if _is_secret(key):
        return (
            f"{key!r} is not part of a host; the connection holds passwords and keys, "
            "for all hosts alike"
        )
    known = ["name", *_READERS]
    near = ["name"] if key in _NAMES else difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown key {key!r}; {hint}known are {commas(known)}"


def whole(value: object) -> int:
    """Return a count, refusing what ``int`` takes: True, 2.5, "+2", "٢"."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise ValueError(f"{value!r} is not a whole number from 1 on")
    return int(text)


def _port(value: object) -> int:
    if (number := whole(value)) > 65535:
        raise ValueError(f"{number} is not a port, which ends at 65535")
    return number


def _text(pattern: str, what: str) -> Callable[[object], str]:
    """Return a reader of text of one form."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return read


def _address(value: object) -> str:
    read = _text(rf"{ADDRESS}|{IPV6}|\[{IPV6}\]", "a host name or an address")
    return read(value).strip("[]")


def _list(item: Callable[[object], str]) -> Callable[[object], tuple[str, ...]]:
    """Return a reader of comma-separated text, or of a list."""

    def read(value: object) -> tuple[str, ...]:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)) or not parts:
            raise ValueError(f"{value!r} is not a list, as in a,b")
        items = tuple(item(part) for part in parts)
        if len(set(items)) < len(items):
            raise ValueError(f"something stands twice in {commas(items)}")
        return items

    return read


def _gpu(value: object) -> str:
    text = str(value) if type(value) is int else value
    if isinstance(text, str) and re.fullmatch("[0-9]{1,9}", text):
        return str(int(text))
    uuid = _text(
        "(?:GPU|MIG)-[0-9A-Za-z/-]+", "index or UUID of a GPU, as nvidia-smi -L lists them"
    )
    return uuid(text)


def _host_key(value: object) -> str:
    key = r"(?:ssh-|ecdsa-|sk-)[\w@.-]+ +[A-Za-z0-9+/]+={0,3}(?: .*)?"
    read = _text(key, 'a public key, as in host_key="ssh-ed25519 AAAA…" (see ssh-keyscan)')
    return " ".join(read(value).split()[:2])


_READERS: dict[str, Callable[[object], Any]] = {
    "slots": whole,
    "max_slots": whole,  # Open MPI's bound on oversubscription, which is the operator's here
    "address": _address,
    "ssh": _address,
    "port": _port,
    "user": _text(USER, "the name of a user"),
    "gpus": _list(_gpu),
    "labels": _list(_text(r"[\w.:/+-]+", "a label")),
    "host_key": _host_key,
}


def commas(items: Iterable[object]) -> str:
    """Return items as words of a sentence."""
    return ", ".join(str(item) for item in items)
