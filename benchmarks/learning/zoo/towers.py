"""Two towers whose vectors are multiplied."""

import keras
import parts
from records import fed

feed_batch = fed("user", "item", "category")
loss = parts.log_loss()


def custom_model():
    given = parts.inputs("user", "item", "category")
    user, item, category = parts.vectors(given, 16)
    query = keras.layers.Dense(16)(user)
    candidate = keras.layers.Dense(16)(keras.layers.Concatenate()([item, category]))
    match = keras.layers.Dot(axes=1)([query, candidate])
    bias = keras.layers.Dense(1)(candidate)
    return keras.Model(given, keras.layers.Reshape([])(keras.layers.Add()([match, bias])))


def optimizer():
    return keras.optimizers.Adagrad(0.1)


def eval_metrics_fn():
    return {"auc": parts.auc()}
