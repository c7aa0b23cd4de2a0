"""The reference pages name all that there is: parameters, fields, variables, modules, journal."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributed_training import launchers
from distributed_training.cluster import Cluster
from distributed_training.operators.base import TrainingOperator
from distributed_training.operators.jax import JaxDistributedOperator
from distributed_training.operators.mpi import MpiTrainOperator
from distributed_training.operators.ray import RayTrainOperator
from distributed_training.operators.tensorflow import TFMultiWorkerOperator
from distributed_training.operators.torch import TorchDistributedOperator
from distributed_training.plan import INTERCONNECTS
from distributed_training.provider import DECORATORS, FIELDS
from tests.offers import offer, spec

if TYPE_CHECKING:
    from distributed_training.plan import Offer

ROOT = Path(__file__).parents[2]
FLOORS = (
    "cli",
    "decorators",
    "operators",
    "triggers",
    "hooks",
    "run",
    "launchers",
    "transport",
    "agent/host",
)
OPERATORS: dict[type[TrainingOperator], str] = {
    TrainingOperator: "torch.md",
    TorchDistributedOperator: "torch.md",
    TFMultiWorkerOperator: "tensorflow.md",
    MpiTrainOperator: "mpi.md",
    JaxDistributedOperator: "jax.md",
    RayTrainOperator: "ray.md",
}
HOST = ROOT / "distributed_training/agent/host"
AGENTS_OWN = "DT_LOCK_DIR"  # lets tests keep their locks apart


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def program() -> str:
    """Return all that runs on a host."""
    return "".join(file.read_text() for file in HOST.rglob("*.py"))


def told(name: str) -> set[str]:
    """Return what stands in the first column of a page's tables."""
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", page(name), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def parameters(operator: type[TrainingOperator]) -> set[str]:
    if "__init__" not in vars(operator):
        return set()  # it has those of every operator
    found = inspect.signature(operator.__init__).parameters.values()
    return {each.name for each in found if each.kind == each.KEYWORD_ONLY}


@pytest.mark.parametrize(("operator", "name"), OPERATORS.items())
def test_every_parameter_of_an_operator_is_explained(
    operator: type[TrainingOperator], name: str
) -> None:
    assert parameters(operator) - told(name) == set()


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_parameter_has_a_line_where_editors_look(operator: type[TrainingOperator]) -> None:
    explained = re.findall(r":param (\w+):", operator.__doc__ or "")
    assert parameters(operator) - set(explained) == set()


def test_every_decorator_is_explained() -> None:
    assert {f"@task.{name}" for name in DECORATORS} - told("functions.md") == set()


def test_every_field_of_the_connection_is_explained() -> None:
    assert set(FIELDS) - set(re.findall(r"`(\w+)`", page("fleet.md"))) == set()


def test_every_variable_of_a_rank_is_explained() -> None:
    asked = spec(checkpoint_dir="/c", hang_timeout=60.0)
    plans = [launchers.plan(asked, [offer("gpu1", gpus=n), offer("gpu2", gpus=n)]) for n in (0, 1)]
    cluster = spec(launcher="tensorflow", cluster=Cluster(1, parameter_server_count=1))
    plans += [launchers.plan(cluster, [offer("gpu1", gpus=n)]) for n in (0, 1)]
    plans += [
        launchers.plan(spec(launcher="mpi", interconnect=network), both)
        for both in hosts_with_every_mpi()
        for network in INTERCONNECTS
    ]
    plans += [launchers.plan(spec(launcher=each), [offer(gpus=1)]) for each in ("jax", "ray")]
    processes = [process for plan in plans for process in plan.head.processes]
    names = {name for each in processes for name in (*each.env, *each.defaults)}
    names |= set(re.findall(r'"(DT_\w+)"', program())) - {AGENTS_OWN}
    shown = told("environment.md")
    families = tuple(name[:-1] for name in shown if name.endswith("*"))
    assert {name for name in names - shown if not name.startswith(families)} == set()


def hosts_with_every_mpi() -> list[list[Offer]]:
    """Return hosts on which a rank has more ranks beside it than cores."""
    families = {"openmpi": "5.0.11", "mpich": "5.0.2", "intelmpi": "2021.18.1"}
    told = [{"program": "/m", "family": name, "version": n} for name, n in families.items()]
    return [
        [offer(host, slots=2, facts={"mpirun": each}) for host in ("gpu1", "gpu2")] for each in told
    ]


@pytest.mark.parametrize("floor", FLOORS)
def test_every_module_has_its_place(floor: str) -> None:
    files = (ROOT / "distributed_training" / floor).glob("[!_]*.py")
    shown = set(re.findall(r"`(\w+)`", page("inside.md")))
    assert {file.stem for file in files} - shown == set()


def test_every_kind_of_journal_line_is_explained() -> None:
    kinds = re.findall(r'journal\.add\(\s*"(\w+)"|unless_ended\(\("(\w+)"', program())
    assert {kind for found in kinds for kind in found if kind} | {"log"} <= told("inside.md")
