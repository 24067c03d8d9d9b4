"""A convolutional network on handwritten digits, functional (custom_model) and as a class (Cnn).

    python -m shoal.model_zoo.digits.prepare DIR
    shoal train --model-zoo model_zoo/digits --model-def cnn.Cnn \
        --training-data DIR/train.parquet --validation-data DIR/validation.parquet

It has no table: all of it is the dense block, cut evenly over the servers.
"""

import keras
import tensorflow as tf

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def feed_batch(columns, mode, metadata):
    """Columns of a minibatch to (features, labels)."""
    pixels = tf.reshape(columns["pixels"].flat_values, [-1, 8, 8, 1])
    features = {"image": tf.cast(pixels, tf.float32) / 16.0}
    return features if mode == "prediction" else (features, columns["label"])


def layers():
    """The layers of both forms, in order."""
    return [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]


def custom_model():
    """The functional form."""
    image = keras.Input([8, 8, 1], name="image")
    hidden = image
    for layer in layers():
        hidden = layer(hidden)
    return keras.Model({"image": image}, hidden)


class Cnn(keras.Model):
    """The same as a class."""

    def __init__(self):
        super().__init__()
        self.steps = layers()

    def call(self, features, training=False):
        """Logits of each digit, [batch, 10]."""
        hidden = features["image"]
        for layer in self.steps:
            hidden = layer(hidden, training=training)
        return hidden


def optimizer():
    """The servers do its arithmetic."""
    return keras.optimizers.Adam(0.003)


def eval_metrics_fn():
    """Over the whole validation data."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
