"""What agents are told to execute."""

from __future__ import annotations

import pytest

from distributed_training import launchers
from distributed_training.errors import PlanError
from distributed_training.plan import Program
from tests.offers import offer, spec

ARGUMENTS = ("--name", "a b", "$HOME")


def argv(**fields):
    return launchers.plan(spec(**fields), [offer(slots=2)]).head.processes[-1].argv


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (Program("script", "t.py", ARGUMENTS), ("python3", "t.py", *ARGUMENTS)),
        (Program("module", "pkg.t", ARGUMENTS), ("python3", "-m", "pkg.t", *ARGUMENTS)),
        (Program("command", ("./run", "-x"), ARGUMENTS), ("./run", "-x", *ARGUMENTS)),
        (Program("command", "echo $RANK"), ("bash", "-c", "echo $RANK", "bash")),
        (
            Program("command", "echo", ARGUMENTS),
            ("bash", "-c", 'echo "$@"', "bash", *ARGUMENTS),
        ),
    ],
    ids=["script", "module", "words", "shell", "shell with arguments"],
)
def test_a_program_becomes_an_argument_vector(program, expected):
    assert argv(program=program) == expected


def test_an_old_script_is_told_its_local_rank_before_its_own_arguments():
    program = Program("script", "t.py", ("--epochs", "3"))
    words = argv(program=program, local_rank_argument="--local_rank")
    assert words == ("python3", "t.py", "--local_rank=1", "--epochs", "3")


def test_torchrun_gets_the_addresses_of_the_plan_and_our_rank_command():
    plan = launchers.plan(spec(launcher="torchrun"), [offer("gpu1"), offer("gpu2", slots=2)])
    words = plan.nodes[1].processes[0].argv
    assert words[:3] == ("python3", "-m", "torch.distributed.run")
    assert {"--nnodes=2", "--nproc-per-node=2", "--node-rank=1"} < set(words)
    assert {"--master-addr=10.0.0.1", "--master-port=20001", "--local-addr=10.0.0.2"} < set(words)
    assert any(word.startswith("--log-dir=") and word.endswith("/1/torchrun") for word in words)
    assert words[-4:] == ("rank", "--", "python3", "train.py")


def test_an_elastic_torchrun_gets_the_nodes_that_there_may_be_and_where_they_meet():
    offers = [offer("gpu1", slots=1), offer("gpu2", slots=2), offer("gpu3", slots=1)]
    fields = {"launcher": "torchrun", "min_nodes": 2, "nnodes": 4, "max_restarts": 5}
    plan = launchers.plan(spec(**fields), offers, attempt=1)
    head, other = (set(plan.nodes[n].processes[0].argv) for n in (0, 1))
    met = {"--nnodes=2:3", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:20001"}
    assert met | {"--rdzv-id=dag-task-1-1", "--max-restarts=5", "--rdzv-conf=is_host=1"} < head
    assert met | {"--nproc-per-node=2", "--rdzv-conf=is_host=0", "--elastic"} < other
    assert not any(word.startswith(("--node-rank", "--master")) for word in head | other)


@pytest.mark.parametrize("launcher", ["process", "mpi", "tensorflow"])
def test_only_torchrun_may_have_a_least_and_a_most(launcher):
    with pytest.raises(PlanError, match="nnodes='1:2' is for launcher='torchrun'"):
        argv(launcher=launcher, min_nodes=1, nnodes=2)


def test_below_torchrun_the_rank_command_completes_the_local_rank():
    words = argv(launcher="torchrun", local_rank_argument="--local_rank")
    assert words[-6:] == (
        "rank", "--local-rank-at=2", "--", "python3", "train.py", "--local_rank=",
    )  # fmt: skip


def test_an_unknown_launcher_is_refused_with_those_that_there_are():
    with pytest.raises(PlanError, match="launcher='slurm' is none of process, torchrun"):
        argv(launcher="slurm")
