"""The distribution as a user gets it: built, installed elsewhere, and found by Airflow."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

import distributed_training

ROOT = Path(__file__).parents[2]
NAME = "airflow-provider-distributed-training"
LINKED = ("decorators", "operators", "hooks", "triggers", "plugins")

IMPORT_ALL = """
import importlib, pkgutil, sys
import distributed_training
modules = pkgutil.walk_packages(distributed_training.__path__, "distributed_training.")
for module in modules:
    importlib.import_module(module.name)
print(distributed_training.__file__)
sys.exit(sorted({"torch", "mpi4py", "tensorflow", "numpy"} & set(sys.modules)) or None)
"""


class Installed:
    """A virtual environment with the wheel and Airflow, used from a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
        self.environment = {name: os.environ[name] for name in keep if name in os.environ}
        self.environment |= {
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONWARNINGS": "ignore",
        }

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment and return what it prints."""
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def airflow(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the rows of a listing of Airflow's."""
        return json.loads(self.run("airflow", *arguments, "--output", "json"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `python -m build` makes: from the sdist that it makes first."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel with all that it needs, in the versions of this environment."""
    site = Installed(tmp_path_factory.mktemp("installed"))
    venv.create(site.folder / "venv", with_pip=True)
    pins = (f"{found.name}=={found.version}" for found in importlib.metadata.distributions())
    constraints = site.folder / "constraints.txt"
    constraints.write_text("\n".join(pin for pin in pins if not pin.startswith(NAME)))
    pip = [site.bin / "python", "-m", "pip", "install", "--quiet", "-c", constraints, wheel]
    subprocess.run(pip, cwd=site.folder, check=True)
    return site


def test_the_wheel_holds_all_folders_in_one_package(wheel: Path) -> None:
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == sources()


def test_the_wheel_holds_what_is_not_code(wheel: Path) -> None:
    names = contents(wheel)
    assert {
        "distributed_training/py.typed",
        "distributed_training/agent/host/verbs/offer.py",
        "distributed_training/plugins/static/task.html",
        "distributed_training/plugins/static/vendor/uPlot.LICENSE",
    } <= names.keys()
    licence = next(text for name, text in names.items() if name.endswith("/licenses/LICENSE"))
    assert b"Apache License" in licence


def test_a_wheel_of_the_checkout_equals_that_of_the_sdist(wheel: Path, tmp_path: Path) -> None:
    assert contents(build(tmp_path, "--wheel")) == contents(wheel)


def test_all_modules_import_without_any_framework(installed: Installed) -> None:
    origin = installed.run("python", "-c", IMPORT_ALL)
    assert Path(origin.strip()).is_relative_to(installed.folder)


def test_a_dag_finds_the_operator(installed: Installed) -> None:
    line = "from distributed_training.operators.torch import TorchDistributedOperator as it"
    assert installed.run("python", "-c", f"{line}; print(it.__name__)") == (
        "TorchDistributedOperator\n"
    )


def test_a_dag_finds_the_decorators(installed: Installed) -> None:
    line = "from airflow.sdk import task; print(task.mpi.__module__)"
    assert installed.run("python", "-c", line) == "distributed_training.decorators.mpi\n"


def test_the_command_line_is_there(installed: Installed) -> None:
    said = installed.run("python", "-m", "distributed_training", "--help")
    assert "doctor" in said
    assert "exit status:" in said


def test_what_is_installed_agrees_with_itself(installed: Installed) -> None:
    assert "No broken requirements found" in installed.run("python", "-m", "pip", "check")


def test_airflow_lists_the_provider(installed: Installed) -> None:
    providers = {row["package_name"]: row for row in installed.airflow("providers", "list")}
    assert providers[NAME]["version"] == distributed_training.__version__


def test_airflow_knows_the_connection_type(installed: Installed) -> None:
    hooks = {row["connection_type"]: row for row in installed.airflow("providers", "hooks")}
    assert hooks["gpu_fleet"]["class"] == "distributed_training.hooks.fleet.FleetHook"
    assert hooks["gpu_fleet"]["hook_name"] == "GPU fleet"
    assert hooks["gpu_fleet"]["package_name"] == NAME


def test_airflow_finds_the_plugin_with_its_pages(installed: Installed) -> None:
    plugins = {row["name"]: row for row in installed.airflow("plugins")}
    assert "Fleets" in str(plugins["distributed_training"]["external_views"])


def test_airflow_knows_the_fields_of_its_form(installed: Installed) -> None:
    fields = {
        row["connection_parameter_name"]
        for row in installed.airflow("providers", "widgets")
        if row["package_name"] == NAME
    }
    assert {"extra__gpu_fleet__hosts", "extra__gpu_fleet__private_key"} <= fields


def build(folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "build", "--outdir", str(folder), *options, str(ROOT)]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sources() -> set[str]:
    """Return the files of the package, as a wheel names them."""
    package = [ROOT / "distributed_training", *(ROOT / folder for folder in LINKED)]
    files = {file for folder in package for file in folder.rglob("*") if file.is_file()}
    relative = {file.relative_to(ROOT).as_posix() for file in files if file.suffix != ".pyc"}
    return {
        name if name.startswith("distributed_training/") else f"distributed_training/{name}"
        for name in relative
    }
