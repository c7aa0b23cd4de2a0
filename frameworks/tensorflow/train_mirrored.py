"""Fit a line with MultiWorkerMirroredStrategy; each worker's data have a slope of their own."""

import json
import os
from pathlib import Path

import tensorflow as tf


def main() -> None:
    """Train, and let worker 0 tell what every worker has learned."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        slope = tf.Variable(0.0)
    worker = strategy.cluster_resolver.task_id
    x = tf.linspace(-1.0, 1.0, 64)
    y = 2.0 * worker * x

    @tf.function
    def step() -> None:
        def learn() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((slope * x - y) ** 2)
            return tape.gradient(loss, slope)

        gradient = strategy.reduce("MEAN", strategy.run(learn), axis=None)
        slope.assign_sub(0.5 * gradient)

    for _ in range(50):
        step()
    learned = strategy.run(lambda: tf.reshape(slope, [1]))
    slopes = strategy.gather(learned, axis=0).numpy().tolist()
    if worker == 0:
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps({"slopes": slopes}))


if __name__ == "__main__":
    main()
