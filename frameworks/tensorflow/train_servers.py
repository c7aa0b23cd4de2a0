"""Fit a line whose slope a parameter server holds, on workers that a coordinator directs."""

import json
import os
from pathlib import Path

import tensorflow as tf


def main() -> None:
    """Serve, or coordinate the training and tell what was learned, and who held it."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
        )
        server.join()
    slope = train(tf.distribute.ParameterServerStrategy(resolver))
    told = {"slope": float(slope.numpy()), "held_by": slope.device}
    Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps(told))


def train(strategy: tf.distribute.ParameterServerStrategy) -> tf.Variable:
    """Return the slope that the workers have learned."""
    with strategy.scope():
        slope = tf.Variable(0.0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step() -> None:
        def learn() -> None:
            x = tf.random.uniform([64], -1.0, 1.0)
            slope.assign_sub(0.2 * tf.reduce_mean(2 * (slope - 3.0) * x * x))

        strategy.run(learn)

    for _ in range(100):
        coordinator.schedule(step)
    coordinator.join()
    return slope


if __name__ == "__main__":
    main()
