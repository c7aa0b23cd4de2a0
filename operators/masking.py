"""Which of a task's values are secret: hosts mask them in logs before the triggerer sees a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk._shared.secrets_masker import redact  # the public module does not export it
from airflow.sdk.log import mask_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

_GAP = "\0"  # no variable and no argument can hold it


def secrets_in(environments: Iterable[Mapping[str, Any]], texts: Iterable[Any]) -> tuple[str, ...]:
    """Return what Airflow holds to be secret, by a variable's name or by what it is.

    The triggerer's own masking does not know them: only the worker has rendered templates.

    :param environments: variables by name; all of a sensitive one is secret
    :param texts: what else reaches the hosts, such as arguments: strings, or what holds some
    """
    found: set[str] = set()
    for variables in environments:
        for name, value in variables.items():
            text = str(value)
            found.update(_hidden(text, _redacted(text, name)), _hidden(text, _redacted(text)))
    for text in _strings(texts):
        found.update(_hidden(text, _redacted(text)))
    for value in found:
        mask_secret(value)
    return tuple(sorted(found))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Iterable):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _redacted(value: str, name: str | None = None) -> str:
    return str(redact(value, name, replacement=_GAP))


def _hidden(value: str, redacted: str) -> Iterator[str]:
    """Yield the parts of a value that gaps were put in place of; values may be megabytes."""
    first, *others = redacted.split(_GAP)
    start = len(first)
    for part in others[:-1]:
        end = value.find(part, start + 1)
        yield value[start:end]
        start = end + len(part)
    if others:
        yield value[start : len(value) - len(others[-1])]
