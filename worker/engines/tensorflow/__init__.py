"""The engine of TensorFlow.

engine.py   what the worker knows of it
tensors.py  NumPy's arrays as tensors
input/      records to batches of tensors, by tf.data and the user's feed
model/      the traced and compiled model: ids, steps, losses, metrics
outputs/    the SavedModel
"""

import tensorflow  # noqa: F401
