"""Reading an operator's arguments: templates make strings of everything."""

from __future__ import annotations

import hashlib
import re
import shlex
import signal
from collections.abc import Iterable, Mapping
from inspect import Parameter, signature
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from distributed_training.errors import PlanError
from distributed_training.plan import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

Value = TypeVar("Value")
_Kind = Literal["script", "module", "command"]

_UNSET = (None, "", "None", "auto")  # what an optional number looks like after a template
_NEVER = ("orphan_timeout",)  # None is not its default, but a choice
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")  # what torch itself has


def given(value: Value | None) -> Value | None:
    """Return what is there: a template makes a blank text or ``None`` of what is not."""
    blank = isinstance(value, str) and value.strip() in ("", "None")
    return None if blank else value


def fill_in(task: object, names: Iterable[str]) -> None:
    """Give parameters that templates left blank their defaults, as if they were not given."""
    parameters: dict[str, Parameter] = {}
    for kind in reversed(type(task).__mro__):
        parameters |= signature(kind.__init__).parameters  # type: ignore[misc]  # of a class
    defaults = {name: each.default for name, each in parameters.items()}
    defaults = {name: value for name, value in defaults.items() if value is not Parameter.empty}
    for name in names:
        value = getattr(task, name)
        if name in _NEVER and str(value).strip() == "None":
            setattr(task, name, None)
        elif given(value) is None and name in defaults:
            setattr(task, name, defaults[name])


def text(name: str, value: object) -> str | None:
    """Return a text or a path as text, or None where nothing is given.

    :raises PlanError: it is something else
    """
    value = given(value)
    if value is None:
        return None
    if not isinstance(value, str | PathLike):
        raise PlanError(f"{name}={value!r} is not text")
    return str(fspath(value))


def whole_number(name: str, value: int | str | None, most: int | None = None) -> int | None:
    """Return a number of at least 1, or None where it is left to the plan.

    :raises PlanError: it is neither
    """
    return None if value in _UNSET else _whole_number(name, value, 1, most)


def node_range(name: str, value: int | str | None) -> tuple[int | None, int | None]:
    """Return the least and the most of ``"2:4"``; of one number, no least.

    :raises PlanError: it is neither, or the least is more than the most
    """
    if ":" not in str(value):
        return None, whole_number(name, value)
    low, _, high = str(value).partition(":")
    least, most = _whole_number(name, low, 1), _whole_number(name, high, 1)
    if least > most:
        raise PlanError(f"{name}={value!r} wants at least {least}, and no more than {most}")
    return least, most


def count(name: str, value: int | str | None) -> int:
    """Return a number of at least 0; nothing is 0.

    :raises PlanError: it is none
    """
    return 0 if given(value) is None else _whole_number(name, value, 0)


def _whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    text = str(value).strip()
    if not text.isdecimal() or not least <= int(text) <= (most or int(text)):
        bounds = f"from {least} to {most}" if most else f"of at least {least}"
        raise PlanError(f"{name}={value!r} is not a whole number {bounds}")
    return int(text)


def seconds(
    name: str, value: float | str, unit: str = "seconds", *, least: float = 0, why: str = ""
) -> float:
    """Return a time in seconds, or in another unit.

    :param why: the reason for ``least``
    :raises PlanError: it is not a number, or below the least
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not least <= number < float("inf"):
        reason = f": {why}" if why else ""
        raise PlanError(f"{name}={value!r} is not a number of {unit}, at least {least:g}{reason}")
    return number


def optional_seconds(name: str, value: float | str | None, least: float = 0) -> float | None:
    """Return a time in seconds, or None for never."""
    if value is None or value in _UNSET:
        return None
    return seconds(name, value, least=least, why="None is for never")


def signal_name(name: str, value: int | str) -> str:
    """Return a signal as ``SIGTERM``; it may be written as ``TERM`` or 15, too.

    :raises PlanError: there is no such signal
    """
    word = str(value).strip().upper()
    for each in signal.Signals:
        if word in (each.name, each.name.removeprefix("SIG"), str(int(each))):
            return each.name
    raise PlanError(f"{name}={value!r} is no signal; write SIGTERM, TERM or 15")


def backend_name(value: object) -> str | None:
    """Return a backend of ``torch.distributed``, or one for each kind of device.

    :raises PlanError: torch has none of that name
    """
    name = (text("backend", value) or "").lower() or None
    for each in name.split(",") if name else ():
        if each.rpartition(":")[2].strip() not in BACKENDS:
            raise PlanError(
                f"backend={value!r} is none of {', '.join(BACKENDS)}; a script may still name any "
                "other one to init_process_group itself"
            )
    return name


def switch(name: str, value: bool | str) -> bool:
    """Return a truth value that may have come through a template."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise PlanError(f"{name}={value!r} is neither True nor False")
    return text == "true"


def choice(name: str, value: object, choices: Sequence[Value]) -> Value:
    """Return one of some texts.

    :raises PlanError: it is another one
    """
    for each in choices:
        if str(value).strip() == each:
            return each
    raise PlanError(f"{name}={value!r} is none of {', '.join(map(str, choices))}")


def program(
    script: object,
    module: object,
    command: str | Sequence[str] | None,
    arguments: Iterable[Any] | Mapping[Any, Any] | str | None,
) -> Program:
    """Return what each rank runs.

    :raises PlanError: not exactly one of script, module and command is given
    """
    programs: dict[_Kind, str | tuple[str, ...] | None] = {
        "script": text("script", script),
        "module": text("module", module),
        "command": _command(command),
    }
    named: dict[_Kind, str | tuple[str, ...]] = {
        kind: value for kind, value in programs.items() if value
    }
    if len(named) != 1:
        raise PlanError(
            "give exactly one of script=, module= and command= to say what each rank runs; "
            f"given: {', '.join(named) or 'none'}"
        )
    ((kind, value),) = named.items()
    return Program(kind, value, tuple(argument_list(arguments)))


def _command(command: object) -> str | tuple[str, ...] | None:
    if not isinstance(command, list | tuple):
        return text("command", command)
    words = tuple(map(str, command))
    if words and not words[0].strip():
        raise PlanError(f"command={command!r} begins with no program")
    return words


def argument_list(
    arguments: Iterable[Any] | Mapping[Any, Any] | str | None, name: str = "arguments"
) -> list[str]:
    """Return arguments as words: ``{"epochs": 5, "amp": True}`` is ``--epochs 5 --amp``.

    :raises PlanError: they are neither words nor options
    """
    arguments = given(arguments)
    if arguments is None:
        return []
    if isinstance(arguments, str):
        return _words(name, arguments)
    if isinstance(arguments, Mapping):
        return [word for key, value in arguments.items() for word in _option(name, key, value)]
    if isinstance(arguments, bytes) or not isinstance(arguments, Iterable):
        raise PlanError(f"{name}={arguments!r} is neither list, text nor dict")
    return [str(argument) for argument in arguments]


def _words(name: str, arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise PlanError(f"{name}= cannot be split ({error}); a list needs no quotes") from None


def _option(name: str, key: object, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if isinstance(value, Mapping):
        raise PlanError(f"{name}: {key} is a dict, which is no argument; give it as text")
    option = str(key) if str(key).startswith("-") else f"--{key}"
    many = value if isinstance(value, list | tuple) else [value]
    return [option] if value is True else [option, *map(str, many)]


def variables(name: str, env: object) -> dict[str, str]:
    """Return environment variables, every value as text.

    :raises PlanError: it is not a mapping of names to plain values
    """
    env = _mapping(name, env, "values")
    for key, value in env.items():
        if value is None or isinstance(value, Mapping | list | tuple):
            raise PlanError(f"{name}: {key} is {type(value).__name__}; give it as text")
    return {str(key): str(value) for key, value in env.items()}


def variables_by_host(name: str, env: object) -> dict[str, dict[str, str]]:
    """Return environment variables of each host that has some of its own."""
    by_host = _mapping(name, env, "variables")
    return {str(host): variables(f"{name}[{host!r}]", own) for host, own in by_host.items()}


def _mapping(name: str, value: object, values: str) -> Mapping[Any, Any]:
    value = given(value)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PlanError(f"{name} is not a mapping of names to {values}: {type(value).__name__}")
    return value


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
