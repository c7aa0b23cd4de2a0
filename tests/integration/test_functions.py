"""Functions as tasks on real hosts: their arguments, their values, and what becomes of errors."""

# The hosts have what functions import.
# pyright: reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, task

from dev.setup import hosts_python
from distributed_training.errors import RankFailed
from distributed_training.operators import life
from tests.integration.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable

TORCHRUN = {"launcher": "torchrun", "python": "torch"}
LAUNCHERS = pytest.mark.parametrize("launcher", ["process", "torchrun"])
EACH = [
    pytest.param(task.torch_distributed, {}, id="torch"),
    pytest.param(task.torch_distributed, TORCHRUN, id="torchrun"),
    pytest.param(task.mpi, {"python": "mpi-openmpi"}, id="mpi"),
    pytest.param(task.tf_multiworker, {"worker_count": 4}, id="tensorflow"),
    pytest.param(task.jax_distributed, {"python": "jax"}, id="jax"),
]


def task_of(decorator: Any, function: Callable[..., Any], *arguments: Any, **fields: Any) -> Task:
    """Return a task that calls a function; it is made anew after each deferral, as by Airflow."""
    if "python" in fields:
        fields["python"] = str(hosts_python(fields["python"]))

    def make(**known: Any) -> Any:
        with DAG("d"):
            return decorator(**known)(function)(*arguments).operator

    made = Task(None, kind=make, **fields)
    made.context["ti"].xcom_push = lambda key, value: pushed.update({key: value})
    pushed: dict[str, Any] = made.context["ti"].__dict__.setdefault("pushed", {})
    return made


def average(values, *, offset=0.5):
    """Average a value over all ranks by torch."""
    import os
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from model import scaled  # in source_dir

    dist.init_process_group(os.environ["DT_BACKEND"])
    mean = torch.tensor(scaled(values[dist.get_rank()]))
    dist.all_reduce(mean)
    size = dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    Path("outputs/mean").write_text(str(mean.item()))
    return {"mean": mean / size + offset, "size": size, "rank": dist.is_initialized()}


@LAUNCHERS
def test_ranks_of_torch_call_a_function_and_the_task_returns_its_value(
    jobs, tmp_path, monkeypatch, launcher
):
    monkeypatch.setattr(life, "WATCH_FIRST", 1.0)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/model.py").write_text("def scaled(x): return 10.0 * x\n")
    fields = {"launcher": launcher, "python": "torch", "source_dir": str(tmp_path / "source")}
    outputs = {"outputs": ["outputs/mean"], "output_dir": str(tmp_path)}
    made = task_of(task.torch_distributed, average, [1, 2, 3, 6], **fields, **outputs)
    value = {"mean": 30.5, "size": 4, "rank": False}
    assert made.run() == value
    assert made.deferrals == ["resume"]
    pushed = made.context["ti"].pushed
    assert pushed["return_value"] == value
    assert pushed["job"]["hosts"] == ["gpu1", "gpu2"]
    assert pushed["job"]["outputs"] == {"outputs/mean": str(tmp_path / "outputs/mean")}
    assert (tmp_path / "outputs/mean").read_text() == "120.0"


def ring(names: list[str]) -> dict[str, Any]:
    """Tell the next rank of a ring one's name by MPI."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    before = comm.sendrecv(
        names[comm.rank], dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size
    )
    return {"size": comm.size, "heard": comm.allgather(before)}


def test_ranks_of_an_mpirun_call_a_function(jobs):
    made = task_of(task.mpi, ring, ["a", "b", "c", "d"], python="mpi-openmpi")
    assert made.run() == {"size": 4, "heard": ["d", "a", "b", "c"]}


def total(start):
    """Sum up all workers' numbers by TensorFlow."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function  # reads the source of what it compiles
    def step():
        context = tf.distribute.get_replica_context()
        number = start + tf.cast(context.replica_id_in_sync_group, tf.float32)
        if number > 100.0:
            number = 0.0
        return context.all_reduce(tf.distribute.ReduceOp.SUM, number)

    sums = strategy.experimental_local_results(strategy.run(step))
    return [strategy.num_replicas_in_sync, float(sums[0])]


def test_workers_of_tensorflow_call_a_function(jobs):
    made = task_of(task.tf_multiworker, total, 1.5, worker_count=2, python="tensorflow")
    assert made.run() == [2, 4.0]


def gathered(values):
    """Gather all processes' numbers by JAX."""
    import jax
    from jax.experimental import multihost_utils

    jax.distributed.initialize()
    own = jax.numpy.array(values[jax.process_index()])
    return multihost_utils.process_allgather(own).tolist()


def test_processes_of_jax_call_a_function(jobs):
    assert task_of(task.jax_distributed, gathered, [3, 1, 2, 0], python="jax").run() == [3, 1, 2, 0]


def test_the_function_that_the_page_shows_learns_a_line(jobs, tmp_path):
    page = (Path(__file__).parents[2] / "docs/functions.md").read_text()
    file = tmp_path / "page.py"
    file.write_text(page.partition("```python\n")[2].partition("```")[0])
    names: dict[str, Any] = {"__file__": str(file), "__name__": "page"}
    exec(compile(file.read_text(), file, "exec"), names)
    fit = names["learn_a_line"]().get_task("fit")
    fit.python, fit.deferrable = str(hosts_python("torch")), False
    fit.op_args = ([[x, 3 * x + 1] for x in range(8)],)
    value = fit.execute(Task().context)
    assert value == {"slope": pytest.approx(3, abs=0.1), "offset": pytest.approx(1, abs=0.1)}


def fails_in_one_rank(message):
    import os
    import time

    class OutOfDigits(ValueError):
        pass

    if os.environ["DT_RANK"] == "1":
        raise OutOfDigits(message)
    time.sleep(60)


@pytest.mark.parametrize(("decorator", "fields"), EACH)
def test_an_exception_of_a_rank_comes_back(jobs, decorator, fields):
    made = task_of(decorator, fails_in_one_rank, "only 9 of 10", **fields)
    with pytest.raises(RankFailed) as failed:
        made.run()
    assert (failed.value.rank, failed.value.exit_code) == (1, 1)
    lines, first = inspect.getsourcelines(fails_in_one_rank)
    number = first + next(at for at, line in enumerate(lines) if "raise" in line)
    told = failed.value.message
    assert f'dt_function/fails_in_one_rank.py", line {number}, in fails_in_one_rank' in told
    assert "    raise OutOfDigits(message)\n" in told
    assert "OutOfDigits: only 9 of 10" in told


def succeeds_when_started_again(rank):
    import os

    assert os.environ["DT_ATTEMPT"] == "1", "not yet"
    return int(os.environ["DT_ATTEMPT"]) + rank


def test_a_function_is_called_again_after_an_error(jobs, monkeypatch):
    """By an operator that knows nothing of the first one, as after a deferral."""
    monkeypatch.setattr(life, "WATCH_FIRST", 0.1)
    made = task_of(
        task.mpi, succeeds_when_started_again, 7, python="mpi-mpich", max_error_restarts=1
    )
    assert made.run() == 8
    assert made.context["ti"].pushed["job"]["restarts"] == 1


def leaves_what_cannot_travel():
    return {"seen": {1, 2}}


def test_a_value_that_cannot_travel_is_the_verdict(jobs):
    with pytest.raises(
        RankFailed, match=r"TypeError: leaves_what_cannot_travel\(\)\['seen'\] is set"
    ):
        task_of(task.torch_distributed, leaves_what_cannot_travel).run()
