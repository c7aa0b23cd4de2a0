"""Fit a line with Keras' model.fit; each worker's data have a slope of their own.

Keras 3 does not know MultiWorkerMirroredStrategy: TF_USE_LEGACY_KERAS=1 has to be set.
"""

import json
import os
from pathlib import Path

import tensorflow as tf


def main() -> None:
    """Train, and let worker 0 tell what every worker has learned."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(1,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.5), loss="mse")
    model.fit(
        strategy.distribute_datasets_from_function(data), epochs=10, steps_per_epoch=5, verbose=0
    )
    learned = strategy.run(lambda: tf.reshape(model.trainable_variables[0], [1]))
    slopes = strategy.gather(learned, axis=0).numpy().tolist()
    if strategy.cluster_resolver.task_id == 0:
        Path(os.environ["DT_RESULT_FILE"]).write_text(json.dumps({"slopes": slopes}))


def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Return the data of one worker."""
    x = tf.linspace([-1.0], [1.0], 64)
    y = 2.0 * context.input_pipeline_id * x
    return tf.data.Dataset.from_tensors((x, y)).repeat()


if __name__ == "__main__":
    main()
