"""The user's losses, computed by TensorFlow as Keras's compile() has them computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import summary
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.engines.tensorflow.model.broadcasting import pairs_all
from shoal.worker.engines.tensorflow.model.sample_weights import weighted
from shoal.worker.model.learning.losses import DeclaredLosses


class Losses(DeclaredLosses):
    """The losses that a module declares.

    Functions, and Keras's own classes, get labels and predictions of one rank, and masks count, as
    from Keras's compile().
    """

    def _of_object(self, loss: Any, whose: str) -> Callable[[Any, Any, Any], Any]:
        """Keras's own classes see to masks, weights and types, as in Keras."""
        if is_keras_own(loss):
            # Some of them take tensors of one rank only; Keras sees to that when it compiles.
            return lambda labels, predictions, weights: loss(
                *of_one_rank(labels, predictions), sample_weight=weights
            )

        def advice(labels: Any, predictions: Any) -> str | None:
            return pairs_all(loss, labels, predictions)

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            given = {} if weights is None else {"sample_weight": weights}
            return loss(labels, predictions, **given)

        return self._checking(function, whose, advice, _of_shapes)

    def _of_function(self, loss: Any, whose: str) -> Callable[[Any, Any, Any], Any]:
        """Wrap a function as Keras's compile() does, with ranks, types, masks and weights."""

        def values_of(inner: Any, labels: Any, predictions: Any) -> Any:
            labels, predictions = keras.tree.map_structure(_in_float32, (labels, predictions))
            return inner(*of_one_rank(labels, predictions))

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            values = values_of(loss, labels, predictions)
            if values is None or getattr(values, "dtype", type(values)) in (tf.string, str):
                self._refuse(
                    f"{whose} returned {'None' if values is None else 'text'}: return a number "
                    "for each record, or one for all"
                )
            values = tf.cast(values, tf.float32)
            mask = masks_of(predictions)[0] if tf.is_tensor(predictions) else None
            if mask is not None and values.shape.rank:
                values = self._masked(values, mask, whose)
            return values if weights is None else weighted(values, weights, whose, self._refuse)

        if is_keras_own(loss):
            return function
        # The function beneath a tf.function: its operations are to be seen.
        inner = partial(values_of, getattr(loss, "python_function", loss))

        def advice(labels: Any, predictions: Any) -> str | None:
            if pairs_all(inner, labels, predictions) is None:
                return None
            return f"pairs each label with each prediction. {_one_shape(labels, predictions)}"

        return self._checking(function, whose, advice, _one_shape)

    def _masked(self, values: Any, mask: Any, whose: str) -> Any:
        """Losses of steps times the mask, so that their mean is that of the steps it leaves."""
        if mask.shape.rank > values.shape.rank:
            self._refuse(
                f"{whose} has the shape {values.shape}, and the model's output has a mask of the "
                f"shape {mask.shape}: return a loss for each step, or end the mask in the model"
            )
        mask = tf.cast(mask, tf.float32)
        size = tf.cast(tf.size(mask), tf.float32)
        of_steps = tf.math.divide_no_nan(mask * size, tf.reduce_sum(mask))
        return weighted(values, of_steps, whose, self._refuse)

    def _checking(
        self,
        function: Callable[[Any, Any, Any], Any],
        whose: str,
        advice: Callable[[Any, Any], str | None],
        hint_of: Callable[[Any, Any], str | None],
    ) -> Callable[[Any, Any, Any], Any]:
        """A loss of the user's, of which is told what is wrong with its shapes.

        advice: what to do about pairs of all. hint_of: what to do about an error of shapes.
        """
        seen: set[tuple[Any, ...]] = set()

        def with_shapes(labels: Any, predictions: Any, weights: Any) -> Any:
            ranks = tuple(
                getattr(each.shape, "rank", None) for each in tf.nest.flatten([labels, predictions])
            )
            # Once, as the step is traced; eagerly, this is called for each batch.
            if ranks not in seen and (fault := advice(labels, predictions)):
                self._refuse(f"{whose} {fault}")
            seen.add(ranks)
            try:
                return function(labels, predictions, weights)
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                if not OF_SHAPES.search(str(error)):
                    raise
                if (hint := hint_of(labels, predictions)) is None:
                    raise
                self._refuse(f"{whose} raised {summary(error)}. {hint}")

        return with_shapes

    def _mean(self, loss: Any) -> tf.Tensor:
        return tf.reduce_mean(tf.cast(loss, tf.float32))

    def _added(self, losses: Sequence[Any]) -> tf.Tensor:
        return tf.add_n(losses)


OF_SHAPES = re.compile(r"shape|rank|dimension|broadcast|incompatible", re.IGNORECASE)
"""What an error says that is about shapes."""


def _of_shapes(labels: Any, predictions: Any) -> str | None:
    """The remedy for an error of shapes, if labels or predictions have an extra last axis of 1.

    None if neither has one.
    """
    ours, theirs = of_one_rank(labels, predictions)
    if ours is labels and theirs is predictions:
        return None
    of_labels, of_predictions = (_told(each) for each in (labels, predictions))
    longer = "predictions" if ours is not labels else "labels"
    shorter = "labels" if ours is not labels else "predictions"
    return (
        f"The labels have the shape {of_labels}, the predictions {of_predictions}: give both the "
        f"same in loss, with tf.squeeze({longer}, -1) or {shorter}[..., None]"
    )


def _one_shape(labels: Any, predictions: Any) -> str | None:
    """The remedy for a function that changes the rank of one of the two, as in `_of_shapes`."""
    ours, theirs = of_one_rank(labels, predictions)
    if ours is labels and theirs is predictions:
        return None
    return (
        f"It gets labels and predictions of one shape, {_told(theirs)}, as from Keras's "
        "compile(): remove tf.squeeze, [..., None] or what else changes that of one of them"
    )


def _told(tensor: Any) -> str:
    return "[" + ", ".join(["batch", *(str(size) for size in tensor.shape[1:])]) + "]"


def _in_float32(tensor: Any) -> Any:
    """Numbers with a point as float32, as a keras.losses.Loss computes.

    Whole numbers stay: float32 has not all ids, and TensorFlow's losses of classes take no others.
    """
    if not getattr(tensor, "dtype", None) or not tf.as_dtype(tensor.dtype).is_floating:
        return tensor
    return _noted(tf.cast(tensor, tf.float32), tensor)


def _noted(changed: Any, tensor: Any) -> Any:
    """A tensor with the mask of the one that it was made of."""
    note_masks([changed], masks_of([tensor]))
    return changed


def of_one_rank(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Both, the one that lacks a last axis of one element with that axis.

    Keras would take the axis off the other one where there are steps; a mask of steps, which is
    of one rank less, would not fit a loss that is averaged over the last axis then.
    """
    of_labels, given = getattr(labels, "shape", None), getattr(predictions, "shape", None)
    if of_labels is None or given is None or of_labels.rank is None or given.rank is None:
        return labels, predictions
    if given.rank == of_labels.rank + 1 and given[-1] == 1:
        labels = labels[..., None]
    elif of_labels.rank == given.rank + 1 and of_labels[-1] == 1:
        predictions = _noted(predictions[..., None], predictions)
    return labels, predictions
