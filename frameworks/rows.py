"""The table: what runs, how, and what it must have learned."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from distributed_training.operators.torch import TorchDistributedOperator
from frameworks.row import RANKS, Row, WrongValue, averaged

HERE = Path(__file__).parent

torch = partial(TorchDistributedOperator, source_dir=str(HERE / "torch"))


def sharded(result: dict[str, Any]) -> str:
    """Check that each rank held its share of the weights, and that all learned the mean slope."""
    shares = result["result"]["shares"]
    if max(shares) > 1.5 / RANKS:
        raise WrongValue(f"each of {RANKS} ranks should hold {1 / RANKS} of the weights: {shares}")
    return f"{averaged(result)}, {max(shares):.2f} of the weights on each"


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
)  # fmt: skip
