"""The environment of a rank."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from distributed_training import launchers
from distributed_training.environment import SCRUB
from distributed_training.errors import PlanError
from tests.offers import offer, spec


def process(fields=None, **offered):
    """Return the first rank's process on two hosts."""
    plan = launchers.plan(spec(**(fields or {})), [offer("gpu1", **offered), offer("gpu2")])
    return plan.head.processes[0]


def test_a_rank_has_the_whole_torch_set():
    env = process().env
    torch = (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE "
        "ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    )
    assert {name: env[name] for name in torch.split()} == {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "0",
        "ROLE_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20001",
    }  # fmt: skip


def test_values_of_the_user_pass_unchanged_and_by_host():
    values = {"MONTHS": "01 02 03", "MSG": "a\nb", "EMPTY": "", "QUOTED": "'\"$HOME=^"}
    fields = {"env": values, "host_env": {"gpu1": {"MONTHS": "12"}, "gpu2": {"MONTHS": "11"}}}
    env = process(fields).env
    assert {name: env[name] for name in values} == values | {"MONTHS": "12"}


@pytest.mark.parametrize(("gpus", "backend"), [(0, "gloo"), (2, "nccl")])
def test_the_backend_follows_the_gpus(gpus, backend):
    assert process(gpus=gpus).env["DT_BACKEND"] == backend


def test_hosts_without_gpus_make_frameworks_distribute_on_cpu():
    assert process().defaults["ACCELERATE_USE_CPU"] == "true"
    assert "ACCELERATE_USE_CPU" not in process(gpus=1).defaults


def test_the_interface_between_hosts_is_given_to_gloo_and_nccl():
    """Case B48: as a default, so that the user's and the host's own settings win."""
    defaults = process().defaults
    assert defaults["GLOO_SOCKET_IFNAME"] == "eth0"
    assert defaults["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_nccl_records_its_collectives_where_a_hang_is_looked_for():
    defaults = process({"hang_timeout": 600.0}, gpus=1).defaults
    assert defaults["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"].endswith("/jobs/dag-task-1/0/0/site/nccl-")
    assert not [name for name in process(gpus=1).defaults if name.startswith("TORCH_NCCL")]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RANK", "take it out"),
        ("MASTER_ADDR", "take it out"),
        ("MASTER_PORT", "set master_port= instead"),
        ("DT_RESULT_FILE", "take it out"),
        ("DT_BACKEND", "set backend= instead"),
    ],
)
def test_a_user_cannot_set_what_the_launcher_sets(name, hint):
    with pytest.raises(PlanError, match=rf"env sets {name}, .*: {hint}"):
        process({"env": {name: "1"}})


def test_what_no_process_can_be_given_is_refused():
    with pytest.raises(PlanError, match=r"host_env\['gpu1'\]: 'A=B'"):
        process({"host_env": {"gpu1": {"A=B": "1"}}})


@pytest.mark.parametrize(
    "name",
    ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "TF_CONFIG", "PET_NNODES"],
)
def test_variables_of_foreign_launchers_are_scrubbed(name):
    assert any(fnmatch(name, pattern) for pattern in SCRUB)


@pytest.mark.parametrize("name", ["PATH", "HOME", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"])
def test_the_hosts_own_variables_are_kept(name):
    assert not any(fnmatch(name, pattern) for pattern in SCRUB)
