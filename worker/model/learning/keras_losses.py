"""The losses of Keras's models, of one rank with the labels and with masks, as from its compile().

Owns what all engines do alike for them, and what is told of shapes that do not fit. Formulas of
weights are those of Keras: a loss is the sum of the weighted losses of its records, divided by
their number and not by the sum of the weights (keras.losses, reduction "sum_over_batch_size").
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.base.nested import leaves, mapped
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.code.module import summary
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.model.learning.losses import DeclaredLosses

OF_SHAPES = re.compile(r"shape|rank|dimension|size of tensor|broadcast|incompatible", re.IGNORECASE)
"""What an error says that is about shapes."""

Loss = Callable[[Any, Any, Any], Any]


class KerasLosses(DeclaredLosses):
    """The losses that a module declares.

    Functions, and Keras's own classes, get labels and predictions of one rank, and masks count, as
    from Keras's compile().

    squeeze: the framework's function that takes an axis off, in words. shape_errors: the types of
    its errors about shapes.
    """

    squeeze: str
    shape_errors: tuple[type[Exception], ...]

    def _is_of_shapes(self, error: Exception) -> bool:
        """True if an error of a loss is about shapes."""
        return bool(OF_SHAPES.search(str(error)))

    @abstractmethod
    def _float32(self, values: Any) -> Any:
        """Numbers as an array float32 of the framework."""

    @abstractmethod
    def _in_float32(self, array: Any) -> Any:
        """An array; numbers with a point as float32, as a keras.losses.Loss computes."""

    @abstractmethod
    def _of_steps(self, mask: Any) -> Any:
        """The weights of steps by which their mean is that of the steps that a mask leaves."""

    @abstractmethod
    def _pairs_all(
        self, function: Callable[[Any, Any], Any], labels: Any, predictions: Any
    ) -> str | None:
        """Advice about a function that pairs each label with each prediction; None for others."""

    def _of_object(self, loss: Any, whose: str) -> Loss:
        """Keras's own classes see to masks, weights and types, as in Keras."""
        if is_keras_own(loss):
            # Some of them take arrays of one rank only; Keras sees to that when it compiles.
            return lambda labels, predictions, weights: loss(
                *of_one_rank(labels, predictions), sample_weight=weights
            )

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            given = {} if weights is None else {"sample_weight": weights}
            return loss(labels, predictions, **given)

        return self._checking(function, whose, partial(self._pairs_all, loss), self._of_shapes)

    def _of_function(self, loss: Any, whose: str) -> Loss:
        """Wrap a function as Keras's compile() does, with ranks, types, masks and weights."""

        def values_of(inner: Any, labels: Any, predictions: Any) -> Any:
            labels, predictions = (
                mapped(self._noted_in_float32, each) for each in (labels, predictions)
            )
            return inner(*of_one_rank(labels, predictions))

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            values = values_of(loss, labels, predictions)
            text = isinstance(values, str) or _type_name(values) == "string"
            if values is None or text:
                self._refuse(
                    f"{whose} returned {'text' if text else 'None'}: return a number for each "
                    "record, or one for all"
                )
            values = self._float32(values)
            mask = masks_of(predictions)[0] if hasattr(predictions, "shape") else None
            if mask is not None and rank_of(values):
                values = self._masked(values, mask, whose)
            return values if weights is None else self._weighted(values, weights, whose)

        if is_keras_own(loss):
            return function
        # The function beneath a tf.function: its operations are to be seen.
        inner = partial(values_of, getattr(loss, "python_function", loss))

        def advice(labels: Any, predictions: Any) -> str | None:
            if self._pairs_all(inner, labels, predictions) is None:
                return None
            return f"pairs each label with each prediction. {self._one_shape(labels, predictions)}"

        return self._checking(function, whose, advice, self._one_shape)

    def _noted_in_float32(self, array: Any) -> Any:
        changed = self._in_float32(array)
        return array if changed is array else _noted(changed, array)

    def _masked(self, values: Any, mask: Any, whose: str) -> Any:
        """Losses of steps times the mask, so that their mean is that of the steps it leaves."""
        if (rank_of(mask) or 0) > (rank_of(values) or 0):
            self._refuse(
                f"{whose} has the shape {_shape(values)}, and the model's output has a mask of the "
                f"shape {_shape(mask)}: return a loss for each step, or end the mask in the model"
            )
        return self._weighted(values, self._of_steps(self._float32(mask)), whose)

    def _weighted(self, values: Any, weights: Any, what: str) -> Any:
        """Losses of records, each times the weight of its record.

        values: float32 [batch, ...]. weights: a number a record, [batch] or [batch, 1], or of the
        shape of `values`. what: the loss, for errors. Gives float32, of the shape of `values`.
        """
        weights = self._float32(weights)
        rank, own = rank_of(values), rank_of(weights)
        if rank == 0:
            self._refuse(
                f"{what} gives one number for a whole minibatch, so its records cannot be "
                "weighted: return a loss for each record, as the functions of keras.losses do, or "
                "use a class of keras.losses"
            )
        if rank is None or own is None:
            return values * weights
        if own == rank + 1 and weights.shape[-1] == 1:
            weights, own = weights[..., 0], rank
        for _ in range(own, rank):
            weights = weights[..., None]
        pairs = zip(weights.shape[1:], values.shape[1:], strict=False)
        if own > rank or any(size not in (None, 1, other) for size, other in pairs):
            self._refuse(
                f"{what} has the shape {_shape(values)}, which weights of the shape "
                f"{_shape(weights)} do not fit: feed must give one weight a record"
            )
        return values * weights

    def _checking(
        self,
        function: Loss,
        whose: str,
        advice: Callable[[Any, Any], str | None],
        hint_of: Callable[[Any, Any], str | None],
    ) -> Loss:
        """A loss of the user's, of which is told what is wrong with its shapes.

        advice: what to do about pairs of all. hint_of: what to do about an error of shapes.
        """
        seen: set[tuple[Any, ...]] = set()

        def with_shapes(labels: Any, predictions: Any, weights: Any) -> Any:
            ranks = tuple(map(rank_of, leaves([labels, predictions])))
            # Once, as a step is traced; eagerly, this is called for each batch.
            if ranks not in seen and (fault := advice(labels, predictions)):
                self._refuse(f"{whose} {fault}")
            seen.add(ranks)
            try:
                return function(labels, predictions, weights)
            except self.shape_errors as error:
                if not self._is_of_shapes(error):
                    raise
                if (hint := hint_of(labels, predictions)) is None:
                    raise
                self._refuse(f"{whose} raised {summary(error)}. {hint}")

        return with_shapes

    def _of_shapes(self, labels: Any, predictions: Any) -> str | None:
        """The remedy for an error of shapes, if labels or predictions have a last axis of 1 more.

        None if neither has one.
        """
        ours, theirs = of_one_rank(labels, predictions)
        if ours is labels and theirs is predictions:
            return None
        of_labels, of_predictions = (_told(each) for each in (labels, predictions))
        longer = "predictions" if ours is not labels else "labels"
        shorter = "labels" if ours is not labels else "predictions"
        return (
            f"The labels have the shape {of_labels}, the predictions {of_predictions}: give both "
            f"the same in loss, with {self.squeeze}({longer}, -1) or {shorter}[..., None]"
        )

    def _one_shape(self, labels: Any, predictions: Any) -> str | None:
        """The remedy for a function that changes the rank of one of the two, as in `_of_shapes`."""
        ours, theirs = of_one_rank(labels, predictions)
        if ours is labels and theirs is predictions:
            return None
        return (
            f"It gets labels and predictions of one shape, {_told(theirs)}, as from Keras's "
            f"compile(): remove {self.squeeze}, [..., None] or what else changes that of one of "
            "them"
        )


def of_one_rank(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Both, the one that lacks a last axis of one element with that axis.

    Keras would take the axis off the other one where there are steps; a mask of steps, which is
    of one rank less, would not fit a loss that is averaged over the last axis then.
    """
    ours, theirs = rank_of(labels), rank_of(predictions)
    if ours is None or theirs is None:
        return labels, predictions
    if theirs == ours + 1 and predictions.shape[-1] == 1:
        labels = labels[..., None]
    elif ours == theirs + 1 and labels.shape[-1] == 1:
        predictions = _noted(predictions[..., None], predictions)
    return labels, predictions


def rank_of(array: Any) -> int | None:
    """The number of axes of an array of any framework.

    None of what is no array, and where TensorFlow does not know it.
    """
    shape = getattr(array, "shape", None)
    if shape is None:
        return None
    return shape.rank if hasattr(shape, "rank") else len(shape)


def _type_name(values: Any) -> str | None:
    return getattr(getattr(values, "dtype", None), "name", None)


def _shape(array: Any) -> str:
    return str(tuple(array.shape))


def _told(array: Any) -> str:
    return "[" + ", ".join(["batch", *(str(size) for size in array.shape[1:])]) + "]"


def _noted(changed: Any, array: Any) -> Any:
    """An array with the mask of the one that it was made of."""
    note_masks([changed], masks_of([array]))
    return changed
