"""DeepFM on click records in the shape of Criteo's: one table for all 26 columns of ids.

H. Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction",
2017. Data, which are SYNTHETIC:

    python -m shoal.model_zoo.criteo.prepare DIR --ids 100000 --records 400000
    shoal train --model-zoo model_zoo/criteo --model-def deepfm.custom_model \
        --training-data DIR/train.parquet --validation-data DIR/validation.parquet
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding

NUMBERS, IDS = 13, 26
DIM = 16


def feed_batch(columns, mode, metadata):
    """Columns of a minibatch to (features, labels)."""
    numbers = tf.stack([columns[f"i{i + 1}"] for i in range(NUMBERS)], axis=1)
    features = {
        "numbers": tf.math.log1p(numbers),
        "ids": tf.stack([columns[f"c{i + 1}"] for i in range(IDS)], axis=1),
    }
    return features if mode == "prediction" else (features, columns["label"])


def inputs():
    """The two inputs of a model: numbers [batch, 13] and ids [batch, 26]."""
    return {
        "numbers": keras.Input([NUMBERS], name="numbers"),
        "ids": keras.Input([IDS], dtype="int64", name="ids"),
    }


def multilayer(hidden, *units):
    """Dense layers one after another."""
    for count in units:
        hidden = keras.layers.Dense(count, activation="relu")(hidden)
    return hidden


def probability(given, logit):
    """The model that gives the sigmoid of `logit` [batch, 1] as [batch]."""
    return keras.Model(given, keras.ops.squeeze(keras.ops.sigmoid(logit), axis=1))


def custom_model():
    """The model to train."""
    given = inputs()
    linear = keras.ops.sum(Embedding(1, "zeros", name="linear")(given["ids"]), axis=1)
    factors = Embedding(DIM, name="factors")(given["ids"])
    square_of_sum = keras.ops.square(keras.ops.sum(factors, axis=1))
    sum_of_squares = keras.ops.sum(keras.ops.square(factors), axis=1)
    pairs = keras.ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True) / 2
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(factors), given["numbers"]])
    deep = keras.layers.Dense(1)(multilayer(deep, 64, 32))
    return probability(given, linear + pairs + deep)


def loss(labels, predictions):
    """Cross entropy of a batch."""
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    """The servers do its arithmetic."""
    return keras.optimizers.Adagrad(0.05)


def eval_metrics_fn():
    """Over the whole validation data."""
    return {"auc": keras.metrics.AUC(num_thresholds=1000)}
