"""The user's losses, computed by TensorFlow as Keras's compile() has them computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from shoal.worker.engines.tensorflow.model.broadcasting import pairs_all
from shoal.worker.engines.tensorflow.model.sample_weights import weights_of_classes
from shoal.worker.model.learning.keras_losses import KerasLosses


class Losses(KerasLosses):
    """The losses that a module declares, of tensors."""

    squeeze = "tf.squeeze"
    shape_errors = (ValueError, tf.errors.InvalidArgumentError)

    weights_of_classes = staticmethod(weights_of_classes)

    def _float32(self, values: Any) -> tf.Tensor:
        return tf.cast(values, tf.float32)

    def _in_float32(self, array: Any) -> Any:
        """See there.

        Whole numbers stay: float32 has not all ids, and TensorFlow's losses of classes take no
        others.
        """
        if not getattr(array, "dtype", None) or not tf.as_dtype(array.dtype).is_floating:
            return array
        return tf.cast(array, tf.float32)

    def _of_steps(self, mask: Any) -> tf.Tensor:
        size = tf.cast(tf.size(mask), tf.float32)
        return tf.math.divide_no_nan(mask * size, tf.reduce_sum(mask))

    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        return pairs_all(function, labels, predictions)

    def _mean(self, loss: Any) -> tf.Tensor:
        return tf.reduce_mean(tf.cast(loss, tf.float32))

    def _added(self, losses: Sequence[Any]) -> tf.Tensor:
        return tf.add_n(losses)
