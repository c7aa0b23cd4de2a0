"""Train a digit classifier with mpi4py: every rank has its share of each batch.

By hand, without Airflow: ``mpirun -np 2 python -m mpi4py train.py --data train.npz``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
from pathlib import Path

import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
Arrays = dict[str, np.ndarray]


def main() -> None:
    """Train, and let rank 0 leave the weights and the figures."""
    options = arguments()
    weights, losses = train(options)
    content = b"".join(weights[name].tobytes() for name in sorted(weights))
    checksums = COMM.gather(hashlib.sha256(content).hexdigest())
    if COMM.rank == 0:
        np.savez(Path(os.environ.get("DT_OUTPUT_DIR", "."), "model.npz"), **weights)
        result = {"loss": losses, "world_size": COMM.size, "checksums": checksums}
        Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(result))


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default="train.npz")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=128, help="samples a step, all ranks")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train(options: argparse.Namespace) -> tuple[Arrays, list[float]]:
    """Return the weights, and the loss of each epoch over all ranks."""
    data = np.load(options.data)
    x, y = data["x"], data["y"]
    random = np.random.default_rng(options.seed)  # the same on all ranks: weights, and the order
    weights = {
        "w1": random.normal(0, 0.1, (64, 64)), "b1": np.zeros(64),
        "w2": random.normal(0, 0.1, (64, 10)), "b2": np.zeros(10),
    }  # fmt: skip
    size = COMM.size * max(1, options.batch_size // COMM.size)
    print(f"rank {COMM.rank} of {COMM.size}: {size // COMM.size} digits a step of {len(x)}, "
          f"on {socket.gethostname()}")  # fmt: skip
    velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    losses = []
    for epoch in range(options.epochs):
        order = random.permutation(len(x))
        batches = [order[at : at + size] for at in range(0, len(x) - size + 1, size)]
        loss = 0.0
        for number, batch in enumerate(batches):
            own = batch[COMM.rank :: COMM.size]
            step, gradients = average(*backward(weights, x[own], y[own]))
            if epoch == number == 0:
                check(gradients, backward(weights, x[batch], y[batch])[1])
            for name, gradient in gradients.items():
                velocity[name] = 0.9 * velocity[name] + gradient
                weights[name] = weights[name] - options.lr * velocity[name]
            loss += step / len(batches)
        losses.append(round(loss, 6))
        record(epoch + 1, losses[-1])
    return weights, losses


def backward(weights: Arrays, x: np.ndarray, y: np.ndarray) -> tuple[float, Arrays]:
    """Return the loss over some digits, and the gradient of each weight."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    scores = hidden @ weights["w2"] + weights["b2"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    loss = -np.log(odds[np.arange(len(y)), y]).mean()
    odds[np.arange(len(y)), y] -= 1
    odds /= len(y)
    back = (odds @ weights["w2"].T) * (hidden > 0)
    return float(loss), {
        "w1": x.T @ back, "b1": back.sum(axis=0),
        "w2": hidden.T @ odds, "b2": odds.sum(axis=0),
    }  # fmt: skip


def average(loss: float, gradients: Arrays) -> tuple[float, Arrays]:
    """Return the mean of all ranks, whose shares are of one size."""
    averaged = {}
    for name, gradient in gradients.items():
        averaged[name] = np.empty_like(gradient)
        COMM.Allreduce(np.ascontiguousarray(gradient), averaged[name])
        averaged[name] /= COMM.size
    return COMM.allreduce(loss) / COMM.size, averaged


def check(averaged: Arrays, whole: Arrays) -> None:
    """See that the mean over ranks is the gradient of the whole batch: else they do not train one.

    :raises RuntimeError: it is another one
    """
    for name, gradient in whole.items():
        if not np.allclose(averaged[name], gradient, rtol=1e-6, atol=1e-9):
            raise RuntimeError(f"rank {COMM.rank}: the averaged gradient of {name} is wrong")
    print(f"rank {COMM.rank}: the averaged gradient is that of the whole batch")


def record(epoch: int, loss: float) -> None:
    """Print the loss for people, and write it down for the task's metrics."""
    if COMM.rank == 0:
        print(f"epoch {epoch}: loss={loss:.4f}")
        with Path(os.environ.get("DT_METRICS_FILE", os.devnull)).open("a") as metrics:
            metrics.write(json.dumps({"epoch": epoch, "loss": loss}) + "\n")


if __name__ == "__main__":
    main()
