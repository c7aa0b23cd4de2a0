"""The environment of each rank: what torch launchers promise, and nothing left from elsewhere."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from distributed_training.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distributed_training.plan import JobSpec, Node, Plan, Rank, Slot

# Variables of other launchers that a login profile or an outer job may have left behind. A rank
# that finds them believes that it belongs to another job.
SCRUB = (
    "SLURM_*", "OMPI_*", "PMI_*", "PMIX_*", "PRTE_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    "I_MPI_*", "HYDI_*", "HYDRA_*", "HOROVOD_*", "TORCHELASTIC_*", "TORCH_ELASTIC_*", "PET_*",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_*", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE", "TF_CONFIG", "CUDA_VISIBLE_DEVICES",
    "JAX_COORDINATOR_*", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "DT_*",
)  # fmt: skip

# What a rank is, is the plan's to say: a user's value would make the ranks disagree, or lose what
# they leave in the files that DT_* variables name. Patterns.
RESERVED = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DT_*",
    "TF_CONFIG",
)  # fmt: skip
# By these, libraries tell which network they use, and where they write it.
TELLING = (
    "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "UCX_LOG_LEVEL", "UCX_LOG_FILE",
    "I_MPI_DEBUG", "I_MPI_DEBUG_OUTPUT",
)  # fmt: skip
# What an operator's argument says instead.
ARGUMENTS = {
    "MASTER_PORT": "master_port",
    "DT_BACKEND": "backend",
    "DT_CHECKPOINT_DIR": "checkpoint_dir",
}


def rank_environment(plan: Plan, node: Node, rank: Rank) -> dict[str, str]:
    """Return the variables of one rank that is started by itself.

    The torch set is that of https://docs.pytorch.org/docs/stable/elastic/run.html.
    """
    return {
        **node_environment(plan, node),
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(len(node.ranks)),
        "GROUP_RANK": str(node.node_rank),
        "GROUP_WORLD_SIZE": str(len(plan.nodes)),
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(plan.world_size),
        "DT_RANK": str(rank.rank),
    }


def node_environment(plan: Plan, node: Node) -> dict[str, str]:
    """Return the variables that all processes of a node share."""
    return {
        **job_environment(plan, node),
        "DT_BACKEND": plan.spec.backend or ("nccl" if node.gpus else "gloo"),
        "NODE_RANK": str(node.node_rank),
        "MASTER_ADDR": plan.head.address,
        "MASTER_PORT": str(plan.master_port),
        **gpu_environment(node.slots),
        **user_environment(plan.spec, node),
    }


def job_environment(plan: Plan, node: Node) -> dict[str, str]:
    """Return what a process of a node is told about its job, whatever framework it runs."""
    env = {
        "PYTHONUNBUFFERED": "1",
        "DT_JOB_ID": plan.spec.job_id,
        "DT_ATTEMPT": str(plan.attempt),
        "DT_NODE_DIR": node.folder,
        "DT_OUTPUT_DIR": f"{node.work}/outputs",
        "DT_METRICS_FILE": f"{node.folder}/metrics.jsonl",
        "DT_RESULT_FILE": f"{node.folder}/result.json",
    }
    if node.checkpoint_dir:
        env["DT_CHECKPOINT_DIR"] = node.checkpoint_dir
    if plan.resume_from:
        env["DT_RESUME_FROM"] = plan.resume_from
    env |= telling_environment(plan, node)
    if plan.spec.program.values is not None:
        env["DT_ARGUMENTS"] = plan.spec.program.values
    return env


def gpu_environment(slots: Sequence[Slot]) -> dict[str, str]:
    """Return what lets a process see the GPUs of these slots only, where there are any."""
    gpus = [slot.gpu for slot in slots if slot.gpu]
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


def user_environment(spec: JobSpec, node: Node) -> Mapping[str, str]:
    """Return what the user sets for the ranks of a node."""
    return {**spec.env, **spec.host_env.get(node.host.name, {})}


def default_environment(plan: Plan, node: Node) -> dict[str, str]:
    """Return variables that help where neither the user nor the host's login has set them."""
    env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": f"{plan.spec.grace_period:g}"}
    if len(node.ranks) > 1:
        env["OMP_NUM_THREADS"] = "1"  # as torchrun does for several ranks on a node
    if node.interface:
        env["GLOO_SOCKET_IFNAME"] = node.interface
    env |= interface_environment(plan, node)
    if node.gpus and plan.spec.hang_timeout is not None:
        # NCCL's flight recorder, which writes beside the logs when a pipe or a timeout tells it to.
        env |= {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{node.folder}/logs/nccl-rank-",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{node.folder}/site/nccl-",
        }
    if not node.gpus:
        # Without these, Accelerate and DeepSpeed start one lonely training per rank on a CPU host.
        env |= {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu"}
    return env


def interface_environment(plan: Plan, node: Node) -> dict[str, str]:
    """Return what leads NCCL to the network between the hosts, whoever uses it."""
    if len(plan.nodes) == 1:
        return {}
    env = {"NCCL_IB_DISABLE": "1"} if plan.spec.interconnect == "tcp" else {}
    if node.interface:
        env["NCCL_SOCKET_IFNAME"] = f"={node.interface}"  # `=`: this name, not a prefix of it
    return env


def telling_environment(plan: Plan, node: Node) -> dict[str, str]:
    """Return what lets libraries tell which network they use, where it has to be InfiniBand.

    NCCL tells much, and has files of its own, with its process in the place of %p. What others
    write into a file comes there only at the end.
    """
    if not plan.needs_infiniband:
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
        "NCCL_DEBUG_FILE": f"{node.folder}/logs/network-nccl-%p.log",
        "UCX_LOG_LEVEL": "info",
        "UCX_LOG_FILE": "stderr",
        "I_MPI_DEBUG": "2",
        "I_MPI_DEBUG_OUTPUT": "stderr",
    }


def check_environment(spec: JobSpec, reserved: Sequence[str] = ()) -> None:
    """Refuse variables that a user must not set, and values that no process can be given.

    :param reserved: names that the launcher sets besides those of all
    """
    by_host: dict[str, Mapping[str, str]] = {"env": spec.env}
    by_host |= {f"host_env[{name!r}]": env for name, env in spec.host_env.items()}
    for where, env in by_host.items():
        for name, value in env.items():
            _check_variable(where, name, value, (*RESERVED, *reserved))
            if spec.interconnect == "infiniband" and name in TELLING:
                raise PlanError(
                    f"{where} sets {name}, by which a library tells whether it uses InfiniBand: "
                    "take it out; with interconnect='infiniband' NCCL tells it in network-nccl-* "
                    "beside the logs, and UCX and Intel MPI in the log"
                )


def _check_variable(where: str, name: str, value: str, reserved: Sequence[str]) -> None:
    if any(fnmatchcase(name, pattern) for pattern in reserved):
        hint = f"set {ARGUMENTS[name]}= instead" if name in ARGUMENTS else "take it out"
        raise PlanError(f"{where} sets {name}, which the launcher sets for each rank: {hint}")
    if not name or "=" in name or "\0" in name or "\0" in value:
        raise PlanError(f"{where}: {name!r} cannot be an environment variable (NUL, `=` or empty)")
