"""Train a digit classifier with DeepSpeed: ZeRO leaves each rank a part of the optimizer's state.

By hand, without Airflow: ``deepspeed train.py --data train.npz``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

# DeepSpeed looks for ninja on the PATH, and a Python that is called by its path has it beside.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Join the other ranks, train, leave."""
    options = arguments()
    deepspeed.init_distributed()  # reads what every launcher sets
    run(options)
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default="train.npz")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO")
    parser.add_argument("--batch-size", type=int, default=128, help="samples a step, all ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--local_rank", type=int, help="of the launcher `deepspeed`, not needed")
    return parser.parse_args()


def config(options: argparse.Namespace) -> dict[str, Any]:
    """Return what DeepSpeed is told."""
    adam = {"lr": options.lr, "torch_adam": True}
    return {
        "train_micro_batch_size_per_gpu": max(1, options.batch_size // dist.get_world_size()),
        "optimizer": {"type": "Adam", "params": adam},
        "zero_optimization": {"stage": options.stage},
    }


def run(options: argparse.Namespace) -> None:
    """Train, and let rank 0 leave the weights and the figures."""
    torch.manual_seed(options.seed)  # every rank starts from the same weights
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(options)
    )
    losses = train(engine, options)
    # At stage 3 no rank has all weights.
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        state = engine.module.state_dict()
        weights = {name: value.float().cpu().numpy().copy() for name, value in state.items()}
    checksums = gather(hashlib.sha256(b"".join(w.tobytes() for w in weights.values())).hexdigest())
    if dist.get_rank() == 0:
        outputs = Path(os.environ.get("DT_OUTPUT_DIR", "."))
        np.savez(outputs / "model.npz", **weights)
        result = {"loss": losses, "world_size": dist.get_world_size(), "checksums": checksums}
        Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(result))


def train(engine: deepspeed.DeepSpeedEngine, options: argparse.Namespace) -> list[float]:
    """Return the loss of each epoch, averaged over all ranks."""
    data = np.load(options.data)
    digits = TensorDataset(torch.tensor(data["x"]), torch.tensor(data["y"]))
    sampler: DistributedSampler[Any] = DistributedSampler(digits, seed=options.seed)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loader = DataLoader(digits, engine.train_micro_batch_size_per_gpu(), sampler=sampler)
    print(f"rank {rank} of {ranks}: {len(sampler)} digits, {engine.device} of "
          f"{socket.gethostname()}, ZeRO stage {engine.zero_optimization_stage()}")  # fmt: skip
    losses = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss = torch.zeros((), device=engine.device)
        for x, y in loader:
            scores = engine(x.to(engine.device))
            step = nn.functional.cross_entropy(scores, y.to(engine.device))
            engine.backward(step)
            engine.step()
            loss += step.detach() / len(loader)
        dist.all_reduce(loss)
        losses.append(round(loss.item() / ranks, 6))
        record(epoch + 1, losses[-1])
    return losses


def record(epoch: int, loss: float) -> None:
    """Print the loss for people, and write it down for the task's metrics."""
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss={loss:.4f}")
        with Path(os.environ.get("DT_METRICS_FILE", os.devnull)).open("a") as metrics:
            metrics.write(json.dumps({"epoch": epoch, "loss": loss}) + "\n")


def gather(value: str) -> list[str]:
    """Return the value of every rank, on every rank."""
    values = [""] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo now and then abort Python's own way out (pytorch/pytorch#190489)
