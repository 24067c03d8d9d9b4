"""DCN-v2 (Wang et al., 2021), of two cross layers, with plain SGD."""

import keras
import parts
from records import fed

feed_batch = fed("user", "item", "category", "price")
loss = parts.log_loss()


def custom_model():
    given = parts.inputs("user", "item", "category", "price")
    first = keras.layers.Concatenate()([*parts.vectors(given, 8), parts.column(given["price"])])
    crossed = first
    for _ in range(2):
        moved = keras.layers.Multiply()([first, keras.layers.Dense(first.shape[1])(crossed)])
        crossed = keras.layers.Add()([crossed, moved])
    both = keras.layers.Concatenate()([crossed, parts.hidden(first, 32)])
    return keras.Model(given, parts.logit(both))


def optimizer():
    return keras.optimizers.SGD(0.5)


def eval_metrics_fn():
    return {"auc": parts.auc()}
