"""MMoE (Ma et al., 2018): three experts, and a gate and a tower for each of two tasks."""

import keras
import parts
from records import fed

TASKS = ("click", "purchase")
feed_batch = fed("user", "item", "category", "price", labels=TASKS)


def custom_model():
    given = parts.inputs("user", "item", "category", "price")
    first = keras.layers.Concatenate()([*parts.vectors(given, 8), parts.column(given["price"])])
    experts = [keras.layers.Reshape([1, 16])(parts.hidden(first, 32, 16)) for _ in range(3)]
    together = keras.layers.Concatenate(axis=1)(experts)
    outputs = {}
    for task in TASKS:
        gate = keras.layers.Dense(len(experts), activation="softmax")(first)
        mixed = keras.layers.Dot(axes=(1, 1))([together, gate])
        outputs[task] = parts.logit(parts.hidden(mixed, 8), name=task)
    return keras.Model(given, outputs)


loss = dict.fromkeys(TASKS, parts.log_loss())


def optimizer():
    return keras.optimizers.Adam(0.002)


def eval_metrics_fn():
    return {"click": {"auc": parts.auc()}}
