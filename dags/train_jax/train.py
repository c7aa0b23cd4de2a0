"""Train a digit classifier with JAX, the batch spread over the devices of all processes.

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

import jax
import numpy as np
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Weights = dict[str, jax.Array]


def main() -> None:
    """Join the other processes, train, and let process 0 leave the weights and the figures."""
    options = arguments()
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()
    data = np.load(options.data)
    print(f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}")
    weights, losses = train(data["x"], data["y"], options)
    local = {name: np.asarray(value) for name, value in weights.items()}
    checksums = multihost_utils.process_allgather(jnp.array(checksum(local))).ravel().tolist()
    if jax.process_index() == 0:
        leave(local, {"loss": losses, "checksums": checksums, "world_size": jax.process_count()})


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default="train.npz")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=128, help="samples a step, all processes")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train(x: np.ndarray, y: np.ndarray, options: argparse.Namespace) -> tuple[Weights, list[float]]:
    """Return the weights, which all processes have, and the loss of each epoch."""
    spread = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))
    weights = classifier(options.seed)
    speed = jax.tree.map(jnp.zeros_like, weights)
    shuffle = np.random.default_rng(options.seed)  # the same order in all processes
    losses = []
    for epoch in range(1, options.epochs + 1):
        seen = []
        for batch in batches(shuffle.permutation(len(x)), options.batch_size):
            own = np.array_split(batch, jax.process_count())[jax.process_index()]
            images = jax.make_array_from_process_local_data(spread, x[own])
            digits = jax.make_array_from_process_local_data(spread, y[own])
            weights, speed, loss = step(weights, speed, images, digits, options.lr)
            seen.append(float(loss))
        losses.append(round(float(np.mean(seen)), 6))
        record(epoch, losses[-1])
    return weights, losses


def classifier(seed: int) -> Weights:
    """Return the first weights of a network with one hidden layer."""
    first, last = jax.random.split(jax.random.key(seed))
    return {
        "hidden": jax.random.normal(first, (64, 64)) / 8,
        "hidden_bias": jnp.zeros(64),
        "output": jax.random.normal(last, (64, 10)) / 8,
        "output_bias": jnp.zeros(10),
    }


def batches(order: np.ndarray, size: int) -> list[np.ndarray]:
    """Return whole batches that all devices can share alike."""
    devices = jax.device_count()
    size = devices * max(1, size // devices)
    return [order[at : at + size] for at in range(0, len(order) - size + 1, size)]


@jax.jit
def step(
    weights: Weights, speed: Weights, images: jax.Array, digits: jax.Array, lr: float
) -> tuple[Weights, Weights, jax.Array]:
    """Return the weights after one step with momentum, and the loss before it."""

    def cost(weights: Weights) -> jax.Array:
        hidden = jax.nn.relu(images @ weights["hidden"] + weights["hidden_bias"])
        scores = jax.nn.log_softmax(hidden @ weights["output"] + weights["output_bias"])
        return -jnp.take_along_axis(scores, digits[:, None], axis=1).mean()

    loss, slopes = jax.value_and_grad(cost)(weights)
    speed = jax.tree.map(lambda old, slope: 0.9 * old - lr * slope, speed, slopes)
    return jax.tree.map(jnp.add, weights, speed), speed, loss


def record(epoch: int, loss: float) -> None:
    """Print the loss for people, and write it down for the task's metrics."""
    if jax.process_index() == 0:
        print(f"epoch {epoch}: loss={loss:.4f}")
        with Path(os.environ.get("DT_METRICS_FILE", os.devnull)).open("a") as metrics:
            metrics.write(json.dumps({"epoch": epoch, "loss": loss}) + "\n")


def checksum(weights: dict[str, np.ndarray]) -> int:
    """Return a number that differs if any weight does."""
    content = b"".join(value.tobytes() for value in weights.values())
    return int.from_bytes(hashlib.sha256(content).digest()[:3], "big")


def leave(weights: dict[str, np.ndarray], result: dict[str, Any]) -> None:
    """Write the weights, and what the tasks that follow are told."""
    np.savez(Path(os.environ.get("DT_OUTPUT_DIR", "."), "model.npz"), **weights)
    Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
