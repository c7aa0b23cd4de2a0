"""Train a digit classifier with MultiWorkerMirroredStrategy: NCCL where there are GPUs.

By hand, without Airflow: ``TF_USE_LEGACY_KERAS=1 python train.py --data train.npz``
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
import tensorflow as tf
from tf_keras import Sequential
from tf_keras.callbacks import Callback
from tf_keras.layers import Dense
from tf_keras.losses import SparseCategoricalCrossentropy
from tf_keras.optimizers import SGD


def main() -> None:
    """Join the other workers, train, and let worker 0 leave the weights and the figures."""
    options = arguments()
    # It reads TF_CONFIG, and has to come before anything else of TensorFlow.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(options.seed)  # all workers start from the same weights
    with strategy.scope():
        model = classifier(options.lr)
    losses = train(model, strategy, options)
    checksums = gather(strategy, checksum(model))
    if is_first():
        leave(model, {"loss": losses, "checksums": checksums, "world_size": len(checksums)})


def arguments() -> argparse.Namespace:
    """Return the options that the task passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default="train.npz")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=128, help="samples a step, all workers")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def classifier(lr: float) -> Sequential:
    """Return the model, which the strategy keeps equal on all workers."""
    model = Sequential([Dense(64, activation="relu", input_shape=(64,)), Dense(10)])
    loss = SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=SGD(lr, momentum=0.9), loss=loss)
    return model


def train(
    model: Sequential, strategy: tf.distribute.Strategy, options: argparse.Namespace
) -> list[float]:
    """Return the loss of each epoch, over all workers."""
    data = np.load(options.data)
    x, y = data["x"], data["y"]
    replicas = strategy.num_replicas_in_sync
    batch = replicas * max(1, options.batch_size // replicas)
    digits = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=options.seed)
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    print(f"1 of {replicas} replicas, {len(x)} digits, on {socket.gethostname()}")
    history = model.fit(
        digits.repeat().batch(batch).with_options(sharding),
        steps_per_epoch=len(x) // batch,  # the same for all, or some would wait for ever
        epochs=options.epochs,
        callbacks=[Record()] if is_first() else [],
        verbose=0,
    )
    return [round(float(loss), 6) for loss in history.history["loss"]]


class Record(Callback):
    """Prints the loss for people, and writes it down for the task's metrics."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Take the loss of one epoch."""
        loss = round(float(logs["loss"]), 6)
        print(f"epoch {epoch + 1}: loss={loss:.4f}")
        with Path(os.environ.get("DT_METRICS_FILE", os.devnull)).open("a") as metrics:
            metrics.write(json.dumps({"epoch": epoch + 1, "loss": loss}) + "\n")


def is_first() -> bool:
    """Return whether this is the worker that speaks for all."""
    return int(os.environ.get("DT_RANK", "0")) == 0


def checksum(model: Sequential) -> int:
    """Return a number that differs if any weight does."""
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    return int.from_bytes(hashlib.sha256(weights).digest()[:7], "big")


def gather(strategy: tf.distribute.Strategy, value: int) -> list[int]:
    """Return the value of every replica, on every worker."""
    own = strategy.run(tf.function(lambda: tf.constant([value], tf.int64)))
    return [int(each) for each in strategy.gather(own, axis=0)]


def leave(model: Sequential, result: dict[str, Any]) -> None:
    """Write the weights, and what the tasks that follow are told."""
    outputs = Path(os.environ.get("DT_OUTPUT_DIR", "."))
    np.savez(outputs / "model.npz", *model.get_weights())
    Path(os.environ.get("DT_RESULT_FILE", "result.json")).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
