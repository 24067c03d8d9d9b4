"""What users' imports compute on the backend of Keras of this process, by name.

Run as a program it prints the numbers as JSON, and which frameworks it has loaded.
"""

import json
import sys

import keras
import numpy as np

import shoal.layers
from shoal.bags import COMBINERS

IDS = np.array([[3, 0, 5, 3], [0, 0, 0, 0], [-(2**31), 1, 0, 2**31 - 1]])
WEIGHTS = np.array([[0.5, 1, 2, 0], [1, 1, 1, 1], [-1, 3, 0.25, 2]], np.float32)


class Rows:
    """A lookup whose rows are known functions of the ids, and of a number that can be trained."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, layer, ids):
        numbers = keras.ops.cast(ids, "float32") * self.scale
        return keras.ops.stack([keras.ops.sin(numbers), keras.ops.cos(numbers)], axis=-1)


def gradient(function, *arrays):
    """The gradients of a function's sum by each of the arrays."""
    backend = keras.backend.backend()
    total = lambda *given: keras.ops.sum(function(*given))  # noqa: E731
    if backend == "jax":
        import jax

        return jax.grad(total, argnums=tuple(range(len(arrays))))(*arrays)
    if backend == "torch":
        import torch

        leaves = [torch.tensor(each, requires_grad=True) for each in arrays]
        return [each.numpy() for each in torch.autograd.grad(total(*leaves), leaves)]
    import tensorflow as tf

    leaves = [tf.constant(each) for each in arrays]
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        found = total(*leaves)
    return tape.gradient(found, leaves)


def bags():
    """Combined rows and masks of padded ids, and the gradient that reaches rows and weights."""
    ids = keras.ops.convert_to_tensor(IDS.astype(np.int32))
    for combiner in (None, *COMBINERS):
        for mask_zero in (False, True):
            layer = shoal.layers.Embedding(2, combiner=combiner, mask_zero=mask_zero)
            name = f"bags {combiner} {mask_zero}"
            with shoal.layers.lookup_with(Rows()):
                yield name, layer(ids)
                if combiner is None:
                    continue
                yield f"{name}, weighted", layer(ids, keras.ops.convert_to_tensor(WEIGHTS))

            def weighted(scale, weights, layer=layer):
                with shoal.layers.lookup_with(Rows(scale)):
                    return layer(ids, weights)

            for what, each in zip(
                ("rows", "weights"),
                gradient(weighted, np.float32(0.5), WEIGHTS + np.float32(0.1)),
                strict=True,
            ):
                yield f"{name}, gradient of {what}", each


def masked():
    """What a model makes of a mask, called by Keras as its layers call one another."""
    ids = keras.Input([4], dtype="int32")
    with shoal.layers.lookup_with(Rows()):
        rows = shoal.layers.Embedding(2, mask_zero=True)(ids)
        model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(rows))
        yield "mask in a model", model(IDS.astype(np.int32))


def computed():
    """Name -> float64 array of all that this module computes."""
    parts = (bags, masked)
    found = {name: value for part in parts for name, value in part()}
    return {
        name: np.asarray(keras.ops.convert_to_numpy(value), np.float64)
        for name, value in found.items()
    }


if __name__ == "__main__":
    told = {name: value.tolist() for name, value in computed().items()}
    json.dump({"computed": told, "loaded": sorted(sys.modules)}, sys.stdout)
