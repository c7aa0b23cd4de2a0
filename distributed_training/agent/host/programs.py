"""What programs of the host tell."""

from __future__ import annotations

import contextlib
import json
import os

from .errors import problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Json


FRAMEWORKS = (
    "torch", "tensorflow", "tensorflow-cpu", "jax", "mpi4py", "deepspeed", "horovod", "accelerate",
    "lightning", "ray",
)  # fmt: skip
VERSIONS = """
import json, sys
from importlib import metadata
found = {"python": ".".join(map(str, sys.version_info[:3]))}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print("\\n\\n" + json.dumps(found))
"""


def output_of(command: Sequence[str], env: dict[str, str] | None = None) -> str | None:
    """Return what a program prints, None where it is absent, fails or hangs."""
    import subprocess

    nobody, pipe = subprocess.DEVNULL, subprocess.PIPE
    with contextlib.suppress(OSError):
        process = subprocess.Popen(command, env=env, stdin=nobody, stdout=pipe, stderr=nobody)
        try:
            told = process.communicate(timeout=20)[0].decode("utf-8", "replace")
            return None if process.returncode else told
        except subprocess.TimeoutExpired:
            process.kill()  # without waiting: in a broken driver it may hang for ever
    return None


def find_python(python: str, env: dict[str, str], folder: str) -> str | None:
    """Return the path of an interpreter that can be run.

    :param folder: that a relative path begins in
    """
    import shutil

    program = os.path.join(folder, python) if "/" in python else python
    return shutil.which(program, path=env.get("PATH", os.defpath))


def missing_python(python: str, env: dict[str, str], folder: str) -> Json | None:
    """Return the finding that an interpreter cannot be run."""
    if find_python(python, env, folder):
        return None
    there = "/" in python and os.path.exists(os.path.join(folder, python))
    why = "it exists but may not be executed" if there else "there is none"
    do = "set python= to an interpreter of this host, or install it"
    return problem(f"python {python} cannot be run", why, do)


def versions(python: str, env: dict[str, str], folder: str) -> Json:
    """Return the versions of an interpreter and of frameworks there, without importing these."""
    path = find_python(python, env, folder)
    told = output_of([path, "-c", VERSIONS, *FRAMEWORKS], env) if path else None
    with contextlib.suppress(ValueError):
        record = json.loads((told or "").rpartition("\n\n")[2])
        return record if isinstance(record, dict) else {}
    return {}
