"""MMoE (Ma et al., 2018): three experts, and a gate and a tower for each of two tasks."""

import keras
import parts
from records import fed

TASKS = ("click", "purchase")
feed_batch = fed("user", "item", "category", "price", labels=TASKS)


def custom_model():
    given = parts.inputs("user", "item", "category", "price")
    first = keras.layers.Concatenate()([*parts.vectors(given, 8), parts.column(given["price"])])
    return keras.Model(given, parts.mixture(first, TASKS))


loss = dict.fromkeys(TASKS, parts.log_loss())


def optimizer():
    return keras.optimizers.Adam(0.002)


def eval_metrics_fn():
    return {"click": {"auc": parts.auc()}}
