"""The table: what runs, how, and what it must have learned."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.environments import hosts_folder
from distributed_training.errors import GroupNotFormed, PreflightFailed
from distributed_training.operators.jax import JaxDistributedOperator
from distributed_training.operators.mpi import MpiTrainOperator
from distributed_training.operators.ray import RayTrainOperator
from distributed_training.operators.tensorflow import TFMultiWorkerOperator
from distributed_training.operators.torch import TorchDistributedOperator
from frameworks.checks import (
    all_passed,
    averaged,
    classified,
    counted,
    passed,
    served,
    sharded,
    streamed,
    tracked,
)
from frameworks.environments import EXTENSIONS, HOROVOD, MPI4PY_TESTS, path_of
from frameworks.row import HOSTS, RANKS, Row, prepared

if TYPE_CHECKING:
    from distributed_training.operators.base import TrainingOperator

HERE = Path(__file__).parent

torch = partial(TorchDistributedOperator, source_dir=str(HERE / "torch"))
lightning = partial(TorchDistributedOperator, source_dir=str(HERE / "lightning"), script="train.py")
OFFLINE = {"HF_HUB_OFFLINE": "1"}  # no host has to reach the hub: the models are in the source
huggingface = partial(TorchDistributedOperator, source_dir=str(HERE / "huggingface"), env=OFFLINE)
workers = partial(TFMultiWorkerOperator, source_dir=str(HERE / "tensorflow"), worker_count=RANKS)
mpi4py = partial(MpiTrainOperator, source_dir=str(HERE / "mpi"), script="train_mpi4py.py")
DEBIAN = "/usr/bin/mpirun.openmpi"  # Open MPI 4, which starts what was made for a later one
# Of the tests of mpi4py: files that ranks of different hosts write together need a file system that
# these share; mpirun has no slots for ranks that other ranks start; and one-sided calls wait for a
# target that has no core while others wait on it, where all hosts share two. MPICH by itself hangs
# in testDistgraphcomm as soon as ranks share no memory.
NOT_HERE = ("test_io.*World.*", "test_spawn.*", "test_rma*World.*")
# What makes data or a model before a training, and what reads afterwards.
TOWERS = "dags/two_tower/prepare.py"
TOKENS = "frameworks/huggingface/prepare_tokens.py"
GPT2 = "frameworks/huggingface/prepare_gpt2.py"
TRACKED = "frameworks/mlflow/read.py"
# It would send statistics; and torchvision, which it wants in a certain version, is not needed.
UNSLOTH = {"UNSLOTH_SKIP_TORCHVISION_CHECK": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}
ALONE = {"ACCELERATE_USE_CPU": "false"}  # what Accelerate does on a CPU where nobody sets it


def accelerate_launch(options: str, *, python: str, **common: Any) -> TorchDistributedOperator:
    """Return an operator that runs one `accelerate launch` on each host."""
    launch = f"{Path(python).parent}/accelerate launch {options}"
    size = f"--num_machines {HOSTS} --machine_rank $NODE_RANK --num_processes {RANKS}"
    meet = "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
    plain = "--mixed_precision no --dynamo_backend no"
    command = f"{launch} {size} {meet} {plain} train_accelerate.py"
    return huggingface(command=command, nproc_per_node=1, python=python, **common)


def deepspeed(operator: type[TrainingOperator], *, python: str, **common: Any) -> TrainingOperator:
    """Return an operator whose hosts find compiled what DeepSpeed needs, each in a copy."""
    compiled, copy = Path(python).parents[1] / EXTENSIONS, f"/tmp/{EXTENSIONS}"
    return operator(
        source_dir=str(HERE / "deepspeed"),
        script="train.py",
        setup=f"cp -anT {compiled} {copy}",
        # Another ninja than the one that has compiled it would do so again.
        env={"TORCH_EXTENSIONS_DIR": copy, "PATH": path_of(python)},
        python=python,
        **common,
    )


def horovod(
    operator: type[TrainingOperator], script: str, *, python: str, **common: Any
) -> TrainingOperator:
    """Return an operator whose hosts find Horovod where it was compiled."""
    return operator(
        source_dir=str(HERE / "horovod"),
        script=script,
        env={"PYTHONPATH": str(Path(python).parents[1] / HOROVOD)},
        python=python,
        **common,
    )


def mpi4py_tests(*, python: str, **common: Any) -> TrainingOperator:
    """Return an operator that runs the tests of mpi4py."""
    return MpiTrainOperator(
        source_dir=str(HERE / "mpi"),
        script="suite.py",
        nproc_per_node=1,
        env={
            "MPI4PY_TESTS": str(Path(python).parents[1] / MPI4PY_TESTS),
            # The hosts share the cores of one machine: who waits there leaves them to the others.
            "OMPI_MCA_mpi_yield_when_idle": "1",
        },
        arguments=[word for pattern in NOT_HERE for word in ("-x", pattern)],
        python=python,
        **common,
    )


def under_mpich(**common: Any) -> TrainingOperator:
    """Return an operator that starts a program by an MPI that its mpi4py is not made for."""
    return mpi4py(mpirun=str(hosts_folder("mpi-mpich") / "bin/mpirun"), **common)


ROWS = (
    Row(
        "torch", "DDP", "torch", "torch", "process",
        partial(torch, script="train_ddp.py"), averaged,
    ),
    Row(
        "torch", "DDP", "torch", "torch", "torchrun",
        partial(torch, script="train_ddp.py", launcher="torchrun"), averaged,
    ),
    Row(
        "torch", "FSDP", "torch", "torch", "process",
        partial(torch, script="train_fsdp.py"), sharded,
    ),
    Row(
        "lightning", "Lightning", "lightning", "trainers", "process",
        lightning, averaged,
    ),
    Row(
        "lightning", "Lightning", "lightning", "trainers", "torchrun",
        partial(lightning, launcher="torchrun"), averaged,
    ),
    Row(
        "huggingface", "Transformers", "transformers", "trainers", "process",
        partial(huggingface, script="train_bert.py"), classified,
    ),
    Row(
        "huggingface", "Accelerate", "accelerate", "trainers", "process",
        partial(huggingface, script="train_accelerate.py"), averaged,
    ),
    Row(
        "huggingface", "Accelerate alone", "accelerate", "trainers", "process",
        partial(huggingface, script="train_accelerate.py", env=ALONE), averaged, GroupNotFormed,
    ),
    Row(
        "huggingface", "accelerate launch", "accelerate", "trainers", "command",
        partial(accelerate_launch, "--multi_gpu"), averaged,
    ),
    Row(
        "huggingface", "accelerate launch --cpu", "accelerate", "trainers", "command",
        partial(accelerate_launch, "--cpu"), partial(averaged, ranks=HOSTS),  # one on each host
    ),
    Row(
        "huggingface", "TRL SFTTrainer", "trl", "trainers", "process",
        partial(huggingface, script="train_gpt2.py"), counted,
    ),
    Row(
        "jax", "JAX", "jax", "jax", "jax",
        partial(JaxDistributedOperator, source_dir=str(HERE / "jax"), script="train.py"), averaged,
    ),
    Row(
        "ray", "Ray Train", "ray", "ray", "ray",
        partial(RayTrainOperator, source_dir=str(HERE / "ray"), script="train.py"), classified,
    ),
    Row(
        "tensorflow", "MultiWorkerMirrored", "tensorflow-cpu", "tensorflow", "tensorflow",
        partial(workers, script="train_mirrored.py"), averaged,
    ),
    Row(
        "tensorflow", "Keras model.fit", "tf-keras", "tensorflow", "tensorflow",
        partial(workers, script="train_keras.py", env={"TF_USE_LEGACY_KERAS": "1"}), averaged,
    ),
    Row(
        "tensorflow", "ParameterServer", "tensorflow-cpu", "tensorflow", "tensorflow",
        partial(
            workers, script="train_servers.py", worker_count=2, parameter_server_count=1, chief=True
        ),
        served,
    ),
    Row(
        "mpi", "mpi4py", "mpi4py", "mpi-openmpi", "Open MPI 4",
        partial(mpi4py, mpi="openmpi", mpirun=DEBIAN), passed,
    ),
    Row(
        "mpi", "mpi4py", "mpi4py", "mpi-openmpi", "Open MPI 5",
        partial(mpi4py, mpi="openmpi"), passed,
    ),
    Row("mpi", "mpi4py", "mpi4py", "mpi-mpich", "MPICH", partial(mpi4py, mpi="mpich"), passed),
    Row(
        "mpi", "mpi4py", "mpi4py", "mpi-intelmpi", "Intel MPI",
        partial(mpi4py, mpi="intelmpi"), passed,
    ),
    Row(
        "mpi", "mpi4py's own tests", "mpi4py", "mpi-openmpi", "Open MPI 5",
        partial(mpi4py_tests, mpi="openmpi"), all_passed,
    ),
    Row(
        "mpi", "mpi4py of another MPI", "mpi4py", "mpi-openmpi", "MPICH",
        under_mpich, passed, PreflightFailed,
    ),
    Row(
        "mpi", "torch DDP", "torch", "trainers", "Open MPI 5",
        partial(MpiTrainOperator, source_dir=str(HERE / "torch"), script="train_ddp.py"), averaged,
    ),
    Row(
        "mpi", "Lightning", "lightning", "trainers", "Open MPI 5",
        partial(MpiTrainOperator, source_dir=str(HERE / "lightning"), script="train.py"), averaged,
    ),
    Row(
        "mpi", "Transformers", "transformers", "trainers", "Open MPI 5",
        partial(
            MpiTrainOperator, source_dir=str(HERE / "huggingface"), script="train_bert.py",
            env=OFFLINE,
        ),
        classified,
    ),
    Row(
        "deepspeed", "DeepSpeed ZeRO", "deepspeed", "trainers", "process",
        partial(deepspeed, TorchDistributedOperator), averaged,
    ),
    Row(
        "deepspeed", "DeepSpeed ZeRO", "deepspeed", "trainers", "Open MPI 5",
        partial(deepspeed, MpiTrainOperator), averaged,
    ),
    Row(
        "horovod", "Horovod", "horovod", "trainers", "Open MPI 5",
        partial(horovod, MpiTrainOperator, "train.py"), averaged,
    ),
    Row(
        "horovod", "Horovod over Gloo", "horovod", "trainers", "process",
        partial(horovod, TorchDistributedOperator, "train_gloo.py"), averaged,
    ),
    Row(
        "composer", "Composer", "mosaicml", "composer", "process",
        partial(TorchDistributedOperator, source_dir=str(HERE / "composer"), script="train.py"),
        averaged,
    ),
    Row(
        "streaming", "Streaming in Lightning", "mosaicml-streaming", "composer", "process",
        partial(TorchDistributedOperator, source_dir=str(prepared(TOWERS)), script="train.py"),
        streamed, before=TOWERS,
    ),
    Row(
        "mlflow", "MLflow", "mlflow", "composer", "process",
        partial(
            TorchDistributedOperator, source_dir=str(HERE / "mlflow"), script="train.py",
            outputs=["outputs/mlflow.db"], output_dir=str(prepared(TRACKED)),
        ),
        tracked, after=TRACKED,
    ),
    Row(
        "huggingface", "LLM Foundry", "llm-foundry", "llm-foundry", "process",
        partial(huggingface, source_dir=str(prepared(TOKENS)), script="train_mpt.py"),
        counted, before=TOKENS,
    ),
    Row(
        "huggingface", "Unsloth", "unsloth", "unsloth", "process",
        partial(
            huggingface, source_dir=str(prepared(GPT2)), script="train_unsloth.py",
            env=OFFLINE | UNSLOTH,
        ),
        counted, before=GPT2,
    ),
)  # fmt: skip
