"""Train a digit classifier with Ray Train: one worker for each GPU, or CPU, of the cluster.

By hand, without Airflow: ``python train.py --data train.npz``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.train import ScalingConfig, get_context
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import distributed, nn


def main() -> None:
    """Train on all that the cluster has, and leave the weights and the figures."""
    options = arguments()
    data = np.load(options.data)
    ray.init()
    has = ray.cluster_resources()
    trainer = TorchTrainer(
        train,
        train_loop_config={**vars(options), "x": data["x"], "y": data["y"]},
        scaling_config=ScalingConfig(
            num_workers=int(has.get("GPU") or has["CPU"]), use_gpu="GPU" in has
        ),
    )
    trained = trainer.fit().return_value
    np.savez(Path(os.environ.get("DT_OUTPUT_DIR", "."), "model.npz"), **trained.pop("weights"))
    Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(trained))
    with Path(os.environ.get("DT_METRICS_FILE", os.devnull)).open("a") as metrics:
        metrics.writelines(
            json.dumps({"epoch": epoch, "loss": loss}) + "\n"
            for epoch, loss in enumerate(trained["loss"], 1)
        )


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default="train.npz")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=128, help="samples a step, all workers")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Train on one worker, and return the weights, the loss of each epoch and all checksums."""
    rank, workers = get_context().get_world_rank(), get_context().get_world_size()
    print(f"worker {rank} of {workers} on {socket.gethostname()}", flush=True)
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    x = torch.from_numpy(config["x"].copy()).to(get_device())
    y = torch.from_numpy(config["y"].copy()).to(get_device())
    shuffle = np.random.default_rng(config["seed"])  # the same order on all workers
    losses = []
    for epoch in range(1, config["epochs"] + 1):
        seen = []
        for batch in batches(shuffle.permutation(len(x)), config["batch_size"], workers):
            own = batch[rank::workers]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[own]), y[own])
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(round(float(np.mean(seen)), 6))
        if rank == 0:
            print(f"epoch {epoch}: loss={losses[-1]:.4f}", flush=True)
    weights = {
        name: value.detach().cpu().numpy().T.copy() for name, value in net.named_parameters()
    }
    checksums = gather(checksum(weights), workers)
    return {"weights": weights, "loss": losses, "checksums": checksums, "world_size": workers}


def batches(order: np.ndarray, size: int, workers: int) -> list[np.ndarray]:
    """Return whole batches that all workers can share alike."""
    size = workers * max(1, size // workers)
    return [order[at : at + size] for at in range(0, len(order) - size + 1, size)]


def checksum(weights: dict[str, np.ndarray]) -> int:
    """Return a number that differs if any weight does."""
    content = b"".join(value.tobytes() for value in weights.values())
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "big")


def gather(value: int, workers: int) -> list[int]:
    """Return the value of every worker, on every worker."""
    values = [value] * workers
    if workers > 1:
        distributed.all_gather_object(values, value)
    return values


if __name__ == "__main__":
    main()
