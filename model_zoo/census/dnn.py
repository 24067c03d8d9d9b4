"""A deep network on the census data, with text as ids.

python -m shoal.model_zoo.census.prepare DIR
shoal train --model-zoo model_zoo/census --model-def dnn.custom_model \
        --training-data DIR/train.csv --validation-data DIR/validation.csv
"""

import keras
import tensorflow as tf

from shoal.layers import Embedding

TEXTS = (
    *("workclass", "education", "marital_status", "occupation"),
    *("relationship", "race", "sex", "native_country"),
)
NUMBERS = ("age", "education_years", "capital_gain", "capital_loss", "hours_per_week")


def feed_batch(columns, mode, metadata):
    """Columns of a minibatch to (features, labels): "sex=Male" is an id as good as a number."""
    texts = [tf.strings.join([f"{name}=", columns[name]]) for name in TEXTS]
    numbers = [tf.math.log1p(tf.cast(columns[name], tf.float32)) for name in NUMBERS]
    features = {"texts": tf.stack(texts, axis=1), "numbers": tf.stack(numbers, axis=1)}
    if mode == "prediction":
        return features
    return features, tf.cast(columns["income"], tf.float32)


def custom_model():
    """The model to train."""
    texts = keras.Input([len(TEXTS)], dtype="string", name="texts")
    numbers = keras.Input([len(NUMBERS)], name="numbers")
    vectors = keras.layers.Flatten()(Embedding(8, name="texts_table")(texts))
    hidden = keras.layers.Concatenate()([vectors, keras.layers.BatchNormalization()(numbers)])
    for units in (64, 32):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    probability = keras.layers.Dense(1, activation="sigmoid")(hidden)
    return keras.Model({"texts": texts, "numbers": numbers}, keras.ops.squeeze(probability, 1))


def loss(labels, predictions):
    """Cross entropy of a batch."""
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    """The servers do its arithmetic."""
    return keras.optimizers.Adam(0.003)


def eval_metrics_fn():
    """Over the whole validation data."""
    return {"auc": keras.metrics.AUC(), "accuracy": keras.metrics.BinaryAccuracy()}
