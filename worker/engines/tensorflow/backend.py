"""TensorFlow beneath Keras, as engines/keras_backend.py wants it: names what does each part."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from shoal.worker.engines.keras_backend import KerasBackend
from shoal.worker.engines.tensorflow.model.clipping import clipped
from shoal.worker.engines.tensorflow.model.flat import FlatVariables
from shoal.worker.engines.tensorflow.model.id_trace import IdTrace, activation
from shoal.worker.engines.tensorflow.model.lookups import RecordLookup
from shoal.worker.engines.tensorflow.model.losses import Losses


class OnTensorFlow:
    """See the Protocol."""

    ids = IdTrace
    recording = RecordLookup
    dense = FlatVariables
    losses = Losses
    clipped = staticmethod(clipped)
    activation = staticmethod(activation)
    eagerly = staticmethod(tf.init_scope)

    def spec_of_input(self, tensor: Any) -> Any:
        """See the Protocol."""
        if getattr(tensor, "ragged", False):
            return tf.RaggedTensorSpec(tensor.shape, tensor.dtype)
        if getattr(tensor, "sparse", False):
            return tf.SparseTensorSpec(tensor.shape, tensor.dtype)
        return tf.TensorSpec(tensor.shape, tensor.dtype)

    def seed(self, number: int) -> None:
        """See the Protocol."""
        tf.random.set_seed(number)


BACKEND: KerasBackend = OnTensorFlow()
