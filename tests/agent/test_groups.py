"""A rank that ends well, but trained by itself, is no success."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from distributed_training.agent import site
from tests.agent.host import Job, exits

if TYPE_CHECKING:
    from pathlib import Path

# What our hooks look at, as each library has it; tests on hosts have the libraries themselves.
LIBRARIES = {
    "torch/distributed/distributed_c10d.py": """
import os
def init_process_group(backend=None):
    '''Join.'''
def get_world_size():
    return int(os.environ["SIZE"])
""",
    "torch/distributed/__init__.py": "from torch.distributed.distributed_c10d import *",
    "torch/__init__.py": "import torch.distributed",
    "mpi4py/__init__.py": "",
    "mpi4py/MPI.py": """
import os
def Is_initialized():
    return True
class COMM_WORLD:
    Get_size = staticmethod(lambda: int(os.environ["SIZE"]))
""",
    "accelerate/__init__.py": "from accelerate.accelerator import Accelerator",
    "accelerate/accelerator.py": """
import torch
class Accelerator:
    def __init__(self, cpu=False):
        torch.distributed.init_process_group()
        self.num_processes = torch.distributed.get_world_size() if cpu else 1
""",
}


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A folder of libraries that can form groups."""
    folder = tmp_path / "libraries"
    for name, text in LIBRARIES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def journal(job: Job, libraries: Path, program: str, *, size: int | None = 2, seen: int = 2):
    """Return the journal of two ranks of which a group of ``size`` is wanted."""
    assert job.prepare(site=site())["ok"]
    env = {"PYTHONPATH": str(libraries), "SIZE": str(seen)}
    ranks = [job.rank(rank, program, DT_RANK=str(rank), **env) for rank in range(2)]
    assert job.start(processes=ranks, ranks=[0, 1], group_size=size)["ok"]
    return job.journal()


JOIN = "import torch; torch.distributed.init_process_group('gloo')"


# Both join the group of torch, but only the first one uses it.
TOGETHER = "from accelerate import Accelerator; Accelerator(cpu=True)"
ALONE = "from accelerate import Accelerator; Accelerator()"


@pytest.mark.parametrize(
    "program", [JOIN, "from mpi4py import MPI", TOGETHER, JOIN + "; import accelerate"]
)
def test_ranks_that_join_each_other_succeed(job: Job, libraries: Path, program: str) -> None:
    ended = journal(job, libraries, program)
    assert ended[-1]["state"] == "success"
    assert [each["alone"] for each in exits(ended).values()] == [{}, {}]


@pytest.mark.parametrize(
    ("program", "alone"),
    [
        ("import torch", {"torch.distributed": 0}),
        (JOIN, {"torch.distributed": 1}),
        ("from mpi4py import MPI", {"mpi4py": 1}),
        ("from mpi4py import MPI; import torch", {"mpi4py": 1, "torch.distributed": 0}),
    ],
)
def test_ranks_that_work_alone_fail(
    job: Job, libraries: Path, program: str, alone: dict[str, int]
) -> None:
    ended = journal(job, libraries, program, seen=1)
    assert ended[-1]["state"] == "failed"
    assert alone in [each["alone"] for each in exits(ended).values()]


def test_ranks_that_ignore_the_group_that_they_joined_fail(job: Job, libraries: Path) -> None:
    ended = journal(job, libraries, ALONE)
    assert ended[-1]["state"] == "failed"
    assert {"accelerate": 1} in [each["alone"] for each in exits(ended).values()]


def test_a_child_of_the_rank_may_be_the_one_that_joins(job: Job, libraries: Path) -> None:
    program = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {JOIN!r}], check=True)"
    )
    assert journal(job, libraries, "import torch; " + program)[-1]["state"] == "success"


def test_nothing_is_checked_where_nobody_asks(job: Job, libraries: Path) -> None:
    assert journal(job, libraries, "import torch", size=None)[-1]["state"] == "success"


def test_a_rank_that_failed_is_told_by_its_own_error(job: Job, libraries: Path) -> None:
    ended = journal(job, libraries, "import torch; raise SystemExit(3)")
    assert {
        (each["code"], str(each["alone"])) for each in exits(ended).values() if not each["by_us"]
    } == {(3, "{}")}


def test_programs_that_cannot_be_checked_are_told(job: Job, libraries: Path) -> None:
    ended = journal(job, libraries, "pass")
    assert ended[-1]["state"] == "success"
    notes = [each["m"] for each in ended if each["k"] == "note"]
    assert sum("was not checked" in text for text in notes) == 1


def test_a_library_is_as_it_would_be_without_us(job: Job, libraries: Path) -> None:
    program = """
import inspect, torch
module = torch.distributed.distributed_c10d
for loader in (module.__loader__, module.__spec__.loader):
    assert type(loader).__name__ == "SourceFileLoader"
assert inspect.getdoc(torch.distributed.init_process_group) == "Join."
assert "def get_world_size" in inspect.getsource(module)
torch.distributed.init_process_group(backend="gloo")
"""
    ended = journal(job, libraries, program)
    assert ended[-1]["state"] == "success", exits(ended)
