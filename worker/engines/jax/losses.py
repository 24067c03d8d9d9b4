"""The user's losses, computed by JAX as Keras's compile() has them computed.

The formulas of weights are those of Keras: a loss is the sum of the weighted losses of its records,
divided by their number and not by the sum of the weights (keras.losses, reduction
"sum_over_batch_size").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import jax.numpy as jnp

from shoal.base.nested import leaves, mapped
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import summary
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.engines.jax.by_values import looked_at
from shoal.worker.engines.jax.pairs import pairs_all
from shoal.worker.model.learning.losses import DeclaredLosses

OF_SHAPES = re.compile(r"shape|rank|dimension|broadcast|incompatible", re.IGNORECASE)
"""What an error says that is about shapes."""


class Losses(DeclaredLosses):
    """The losses that a module declares.

    Functions, and Keras's own classes, get labels and predictions of one rank, and masks count, as
    from Keras's compile().
    """

    def _of_object(self, loss: Any, whose: str) -> Callable[[Any, Any, Any], Any]:
        """Keras's own classes see to masks, weights and types, as in Keras."""
        if is_keras_own(loss):
            # Some of them take arrays of one rank only; Keras sees to that when it compiles.
            return lambda labels, predictions, weights: loss(
                *of_one_rank(labels, predictions), sample_weight=weights
            )

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            given = {} if weights is None else {"sample_weight": weights}
            return loss(labels, predictions, **given)

        return self._checking(function, whose, partial(pairs_all, loss), _of_shapes)

    def _of_function(self, loss: Any, whose: str) -> Callable[[Any, Any, Any], Any]:
        """Wrap a function as Keras's compile() does, with ranks, types, masks and weights."""

        def values_of(labels: Any, predictions: Any) -> Any:
            labels, predictions = (mapped(_in_float32, each) for each in (labels, predictions))
            return loss(*of_one_rank(labels, predictions))

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            values = values_of(labels, predictions)
            if values is None or isinstance(values, str):
                self._refuse(
                    f"{whose} returned {'None' if values is None else 'text'}: return a number "
                    "for each record, or one for all"
                )
            values = jnp.asarray(values, jnp.float32)
            mask = masks_of(predictions)[0] if hasattr(predictions, "shape") else None
            if mask is not None and values.ndim:
                values = self._masked(values, mask, whose)
            return values if weights is None else weighted(values, weights, whose, self._refuse)

        if is_keras_own(loss):
            return function

        def advice(labels: Any, predictions: Any) -> str | None:
            if pairs_all(values_of, labels, predictions) is None:
                return None
            return f"pairs each label with each prediction. {_one_shape(labels, predictions)}"

        return self._checking(function, whose, advice, _one_shape)

    def _masked(self, values: Any, mask: Any, whose: str) -> Any:
        """Losses of steps times the mask, so that their mean is that of the steps it leaves."""
        if mask.ndim > values.ndim:
            self._refuse(
                f"{whose} has the shape {values.shape}, and the model's output has a mask of the "
                f"shape {mask.shape}: return a loss for each step, or end the mask in the model"
            )
        mask = mask.astype(jnp.float32)
        total = jnp.sum(mask)
        of_steps = jnp.where(total > 0, mask * (mask.size / jnp.maximum(total, 1)), 0)
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
            ranks = tuple(len(getattr(each, "shape", ())) for each in leaves([labels, predictions]))
            if ranks not in seen and (fault := advice(labels, predictions)):
                self._refuse(f"{whose} {fault}")
            seen.add(ranks)
            try:
                return function(labels, predictions, weights)
            except (ValueError, TypeError) as error:
                if looked_at(error, "") or not OF_SHAPES.search(str(error)):
                    raise
                if (hint := hint_of(labels, predictions)) is None:
                    raise
                self._refuse(f"{whose} raised {summary(error)}. {hint}")

        return with_shapes

    def _mean(self, loss: Any) -> Any:
        return jnp.mean(jnp.asarray(loss, jnp.float32))

    def _added(self, losses: Sequence[Any]) -> Any:
        return jnp.sum(jnp.stack(list(losses)))


def weighted(values: Any, weights: Any, what: str, refuse: Callable[[str], NoReturn]) -> Any:
    """Losses of records, each times the weight of its record.

    values: floats [batch, ...]. weights: a number a record, [batch] or [batch, 1], or of the
    shape of `values`. what: the loss, for errors. refuse: raises UserError with a message.
    Returns float32, of the shape of `values`.
    """
    values, weights = (jnp.asarray(each, jnp.float32) for each in (values, weights))
    if not values.ndim:
        refuse(
            f"{what} gives one number for a whole minibatch, so its records cannot be weighted: "
            "return a loss for each record, as the functions of keras.losses do, or use a class of "
            "keras.losses"
        )
    if weights.ndim == values.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while weights.ndim < values.ndim:
        weights = weights[..., None]
    pairs = zip(weights.shape[1:], values.shape[1:], strict=False)
    if weights.ndim > values.ndim or any(own not in (1, other) for own, other in pairs):
        refuse(
            f"{what} has the shape {values.shape}, which weights of the shape {weights.shape} do "
            "not fit: feed_batch must give one weight a record"
        )
    return values * weights


def weights_of_classes(labels: Any, table: Sequence[float]) -> Any:
    """The weight of each record by its class, float32 [batch].

    labels: classes, [batch] or [batch, 1], or one-hot, [batch, classes], as in Keras.
    table: the weight of each class from 0 on, and last that of all other classes.
    """
    labels = jnp.asarray(labels)
    if labels.ndim > 1:
        labels = jnp.argmax(labels, axis=-1) if labels.shape[-1] > 1 else labels[..., 0]
    classes = labels.astype(jnp.int32)
    other = len(table) - 1
    known = (classes >= 0) & (classes < other)
    return jnp.asarray(table, jnp.float32)[jnp.where(known, classes, other)]


def of_one_rank(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Both, the one that lacks a last axis of one element with that axis.

    Keras would take the axis off the other one where there are steps; a mask of steps, which is
    of one rank less, would not fit a loss that is averaged over the last axis then.
    """
    if not (hasattr(labels, "shape") and hasattr(predictions, "shape")):
        return labels, predictions
    ours, theirs = len(labels.shape), len(predictions.shape)
    if theirs == ours + 1 and predictions.shape[-1] == 1:
        labels = labels[..., None]
    elif ours == theirs + 1 and labels.shape[-1] == 1:
        predictions = _noted(predictions[..., None], predictions)
    return labels, predictions


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
        f"same in loss, with jnp.squeeze({longer}, -1) or {shorter}[..., None]"
    )


def _one_shape(labels: Any, predictions: Any) -> str | None:
    """The remedy for a function that changes the rank of one of the two, as in `_of_shapes`."""
    ours, theirs = of_one_rank(labels, predictions)
    if ours is labels and theirs is predictions:
        return None
    return (
        f"It gets labels and predictions of one shape, {_told(theirs)}, as from Keras's "
        "compile(): remove jnp.squeeze, [..., None] or what else changes that of one of them"
    )


def _told(array: Any) -> str:
    return "[" + ", ".join(["batch", *(str(size) for size in array.shape[1:])]) + "]"


def _in_float32(array: Any) -> Any:
    """Numbers with a point as float32, as a keras.losses.Loss computes. Whole numbers stay."""
    if array is None or not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return _noted(array.astype(jnp.float32), array)


def _noted(changed: Any, array: Any) -> Any:
    """An array with the mask of the one that it was made of."""
    note_masks([changed], masks_of([array]))
    return changed
