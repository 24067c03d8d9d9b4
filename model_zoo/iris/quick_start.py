"""Iris species from four lengths: the smallest module there is.

python -m shoal.model_zoo.iris.prepare DIR
shoal train --model-zoo model_zoo/iris --model-def quick_start.custom_model \
        --training-data DIR/iris.csv --epochs 20 --batch-size 10 --output trained
"""

import keras
import tensorflow as tf

LENGTHS = ("sepal_length", "sepal_width", "petal_length", "petal_width")

loss = "sparse_categorical_crossentropy"


def feed_batch(columns, mode, metadata):
    """Columns of a minibatch to (features, labels)."""
    features = tf.stack([tf.cast(columns[name], tf.float32) for name in LENGTHS], axis=1)
    return features if mode == "prediction" else (features, columns["species"])


def custom_model():
    """The model to train."""
    return keras.Sequential(
        [
            keras.Input([len(LENGTHS)]),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def optimizer():
    """The servers do its arithmetic."""
    return keras.optimizers.Adam(0.02)


def eval_metrics_fn():
    """Over the whole validation data."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
