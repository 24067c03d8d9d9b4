"""The random numbers of a worker: those of its model's layers, and those of the user's code."""

from __future__ import annotations

import random

import keras
import numpy as np

from shoal.worker.code.keras_internals import all_layers
from shoal.worker.engines import backend_of_keras


def reseed(model: keras.Model, seed: int, worker: int, incarnation: int) -> None:
    """Give each start of each worker random numbers of its own, now that weights are made.

    These are the numbers of dropout masks, and those that the user's code draws from Python, NumPy
    and the engine. The first start of worker 0 keeps those of the seed.
    """
    if not (worker or incarnation):
        return
    stream = np.random.SeedSequence([seed, worker, incarnation]).generate_state(1)[0]
    for layer in all_layers(model):
        generator = getattr(layer, "seed_generator", None)
        if generator is not None:
            state = generator.state.numpy()
            generator.state.assign(state + np.array([stream, 0]).astype(state.dtype))
    # Not keras.utils.set_random_seed: it takes away a generator that the model may hold.
    random.seed(int(stream))
    np.random.seed(stream)
    backend_of_keras().seed(int(stream))
