"""The end-to-end benchmark's module for shoal: `shoal train --model-def model.custom_model`."""

import keras
import network
import tensorflow as tf

from shoal.layers import Embedding

DENSE = [f"i{i + 1}" for i in range(13)]
CATEGORICAL = [f"c{i + 1}" for i in range(26)]


def feed_batch(columns, mode, metadata):  # noqa: ARG001
    """Columns of a minibatch to (features, labels)."""
    features = {
        "ids": tf.stack([columns[name] for name in CATEGORICAL], axis=1),
        "dense": tf.math.log1p(tf.stack([columns[name] for name in DENSE], axis=1)),
    }
    return features if mode == "prediction" else (features, columns["label"])


def feed(dataset, mode, metadata):  # noqa: ARG001
    """The same, record by record."""

    def prepare(record):
        features = {
            "ids": tf.stack([record[name] for name in CATEGORICAL]),
            "dense": tf.math.log1p(tf.stack([record[name] for name in DENSE])),
        }
        return features if mode == "prediction" else (features, record["label"])

    return dataset.map(prepare)


def custom_model():
    uniform = keras.initializers.RandomUniform(-0.01, 0.01)
    return network.deepfm(
        keras,
        Embedding(1, embeddings_initializer="zeros", name="linear"),
        Embedding(network.DIM, embeddings_initializer=uniform, name="factors"),
    )


loss = network.loss


def optimizer(rate=network.RATE, accumulator=0.1, epsilon=1e-7):
    return keras.optimizers.Adagrad(rate, accumulator, epsilon=epsilon)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=2000, from_logits=True)}
