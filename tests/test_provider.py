"""What Airflow is told of the package is what Airflow accepts, and what there is."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from distributed_training.provider import FIELDS, get_provider_info

INFO = get_provider_info()
ROOT = Path(__file__).parents[1]


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files("airflow").joinpath(name).read_text())
    return loaded


def test_airflow_accepts_the_description() -> None:
    jsonschema.validate(INFO, schema("provider_info.schema.json"))


@pytest.mark.parametrize(
    "part", ["connection-types", "operators", "task-decorators", "hooks", "triggers"]
)
def test_each_part_is_as_airflows_own_providers_have_it(part: str) -> None:
    jsonschema.validate(INFO[part], schema("provider.yaml.schema.json")["properties"][part])


@pytest.mark.parametrize("part", ["operators", "hooks", "triggers"])
def test_every_module_can_be_imported(part: str) -> None:
    for entry in INFO[part]:
        for module in entry["python-modules"]:
            importlib.import_module(module)


def test_every_decorator_is_there() -> None:
    for entry in INFO["task-decorators"]:
        module, _, name = entry["class-name"].rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_connection_type_is_the_hooks() -> None:
    (kind,) = INFO["connection-types"]
    module, _, name = kind["hook-class-name"].rpartition(".")
    hook = getattr(importlib.import_module(module), name)
    assert (hook.conn_type, hook.hook_name) == (kind["connection-type"], kind["hook-name"])


def test_secrets_are_hidden_in_the_form() -> None:
    hidden = {name for name, field in FIELDS.items() if field["schema"].get("format") == "password"}
    assert hidden == {"private_key", "private_key_passphrase"}


def test_every_field_may_be_left_empty() -> None:
    assert all("null" in field["schema"]["type"] for field in FIELDS.values())


def test_the_name_is_the_distributions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert INFO["package-name"] == project["name"]
    entry = project["entry-points"]["apache_airflow_provider"]["provider_info"]
    assert entry == "distributed_training.provider:get_provider_info"


def test_discovery_imports_nothing_of_airflow() -> None:
    code = "import sys, distributed_training.provider; print('airflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
