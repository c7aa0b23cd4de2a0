"""Reading an operator's arguments: templates make strings of everything."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from distributed_training.errors import PlanError
from distributed_training.plan import Program

if TYPE_CHECKING:
    from airflow.sdk import Context

Value = TypeVar("Value")

_UNSET = (None, "", "None", "auto")  # what an optional number looks like after a template


def given(value: Value | None) -> Value | None:
    """Return what is there: a template makes an empty text or ``None`` of what is not."""
    return None if value in ("", "None") else value


def whole_number(name: str, value: int | str | None) -> int | None:
    """Return a number of at least 1, or None where it is left to the plan.

    :raises PlanError: it is neither
    """
    if value in _UNSET:
        return None
    text = str(value).strip()
    if not text.isdecimal() or int(text) < 1:
        raise PlanError(f"{name}={value!r} is not a whole number of at least 1")
    return int(text)


def count(name: str, value: int | str | None) -> int:
    """Return a number of at least 0; nothing is 0.

    :raises PlanError: it is none
    """
    return 0 if str(value).strip() in ("", "None", "0") else whole_number(name, value) or 0


def seconds(name: str, value: float | str, unit: str = "seconds") -> float:
    """Return a time in seconds, or in another unit.

    :raises PlanError: it is not a number, or below zero
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise PlanError(f"{name}={value!r} is not a number of {unit}")
    return number


def optional_seconds(name: str, value: float | str | None) -> float | None:
    """Return a time in seconds, or None for never."""
    return None if value in _UNSET else seconds(name, value or 0)


def switch(name: str, value: bool | str) -> bool:
    """Return a truth value that may have come through a template."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise PlanError(f"{name}={value!r} is neither True nor False")
    return text == "true"


def program(
    script: str | None,
    module: str | None,
    command: str | Sequence[str] | None,
    arguments: Sequence[Any] | Mapping[str, Any] | str,
) -> Program:
    """Return what each rank runs.

    :raises PlanError: not exactly one of script, module and command is given
    """
    given = {"script": script, "module": module, "command": command}
    named = [name for name, value in given.items() if value]
    if len(named) != 1:
        raise PlanError(
            "give exactly one of script=, module= and command= to say what each rank runs; "
            f"given: {', '.join(named) or 'none'}"
        )
    words = tuple(argument_list(arguments))
    if script:
        return Program("script", script, words)
    if module:
        return Program("module", module, words)
    assert command is not None
    value = command if isinstance(command, str) else tuple(map(str, command))
    return Program("command", value, words)


def argument_list(arguments: Sequence[Any] | Mapping[str, Any] | str) -> list[str]:
    """Return arguments as words: ``{"epochs": 5, "amp": True}`` is ``--epochs 5 --amp``."""
    if isinstance(arguments, str):
        return shlex.split(arguments)
    if not isinstance(arguments, Mapping):
        return [str(argument) for argument in arguments]
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        option = name if name.startswith("-") else f"--{name}"
        many = value if isinstance(value, list | tuple) else [value]
        words += [option] if value is True else [option, *map(str, many)]
    return words


def variables(name: str, env: Mapping[str, Any] | None) -> dict[str, str]:
    """Return environment variables, every value as text.

    :raises PlanError: it is not a mapping of names to plain values
    """
    if not isinstance(env, Mapping):
        if env is None:
            return {}
        raise PlanError(f"{name} is not a mapping of names to values: {type(env).__name__}")
    for key, value in env.items():
        if value is None or isinstance(value, Mapping | list | tuple):
            raise PlanError(f"{name}: {key} is {type(value).__name__}; give it as text")
    return {str(key): str(value) for key, value in env.items()}


def job_label(context: Context | Mapping[str, Any]) -> dict[str, str]:
    """Return who the job is for, as people know it."""
    if "ti" not in context:
        return {}
    ti = context["ti"]
    return {
        "dag": ti.dag_id,
        "task": ti.task_id,
        "run": ti.run_id,
        "map_index": str(ti.map_index),
        "try": str(ti.try_number),
    }


def job_id(context: Context | Mapping[str, Any]) -> str:
    """Return an id that is the same whenever this try of this task is asked for.

    It is a file name on the hosts: readable, safe and short. Airflow's own id of the try keeps
    apart what two installations of Airflow run under equal names.
    """
    label = job_label(context)
    if not label:
        return "dry-run"
    parts = (*label.values(), str(context["ti"].id))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{label['dag']}-{label['task']}")[:60]
    return f"{name}-{digest}-{label['try']}"
