"""Train a digit classifier with DistributedDataParallel: NCCL where there are GPUs, else gloo.

By hand, without Airflow: ``torchrun --nproc-per-node 2 train.py --data train.npz``
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

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Join the other ranks, train, leave."""
    options = arguments()
    run(options, join())
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default="train.npz")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=128, help="samples a step, all ranks")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join() -> torch.device:
    """Form the process group from the variables every launcher sets; return this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def run(options: argparse.Namespace, device: torch.device) -> None:
    """Train, and let rank 0 leave the weights and the figures."""
    torch.manual_seed(options.seed)  # every rank starts from the same weights
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    losses = train(model, options, device)
    weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
    checksums = gather(hashlib.sha256(b"".join(w.tobytes() for w in weights.values())).hexdigest())
    if dist.get_rank() == 0:
        outputs = Path(os.environ.get("DT_OUTPUT_DIR", "."))
        np.savez(outputs / "model.npz", **weights)
        result = {"loss": losses, "world_size": dist.get_world_size(), "checksums": checksums}
        Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(result))


def train(model: nn.Module, options: argparse.Namespace, device: torch.device) -> list[float]:
    """Return the loss of each epoch, averaged over all ranks."""
    data = np.load(options.data)
    digits = TensorDataset(torch.tensor(data["x"]).to(device), torch.tensor(data["y"]).to(device))
    sampler: DistributedSampler[Any] = DistributedSampler(digits, seed=options.seed)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loader = DataLoader(digits, max(1, options.batch_size // ranks), sampler=sampler)
    print(f"rank {rank} of {ranks}: {len(sampler)} digits, {device} of {socket.gethostname()}")
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=options.lr, momentum=0.9)
    losses = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss = torch.zeros((), device=device)
        for x, y in loader:
            optimizer.zero_grad()
            step = nn.functional.cross_entropy(parallel(x), y)
            step.backward()
            optimizer.step()
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
