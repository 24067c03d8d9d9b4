"""The user's loss, or a loss for each output, as one scalar.

Owns how `loss`, `loss_weights` and the model's outputs belong together. Metrics are
evaluation.py's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import keras
import tensorflow as tf

from shoal.base.words import near
from shoal.errors import UserError
from shoal.worker.keras_internals import is_keras_own
from shoal.worker.model.broadcasting import pairs_all
from shoal.worker.model.sample_weights import weighted
from shoal.worker.module import summary


def part_of(structure: Any, key: Any) -> Any:
    """The entry of labels or predictions for one output; the whole if it has no entries."""
    if isinstance(structure, Mapping | list | tuple):
        return structure[key]
    return structure


def output_name(key: Any) -> str:
    """An output as reports name it: its key in a dict, or output_0 and so on in a list."""
    return key if isinstance(key, str) else f"output_{key}"


class Losses:
    """What a module's `loss` and `loss_weights` say.

    loss: a function of labels and predictions, a keras.losses.Loss or its name; or a dict or
        list of these, one for each output of the model. Those of Keras get labels and
        predictions of one rank, as in Keras.
    weights: None, or a number for each output, in the same form.
    refuse: raises UserError with a message, so that it comes out of a traced function whole.
    """

    def __init__(
        self, loss: Any, weights: Any, file: str, refuse: Callable[[str], NoReturn]
    ) -> None:
        """Raises UserError if they are no losses or weights."""
        self._file = file
        self._refuse = refuse
        several = isinstance(loss, Mapping | list | tuple)
        given = loss.items() if isinstance(loss, Mapping) else enumerate(loss) if several else ()
        self.parts = {key: self._function(each, f"loss of output {key!r}") for key, each in given}
        self._whole = None if several else self._function(loss, "loss")
        self._weights = self._checked(weights)

    def _function(self, loss: Any, what: str) -> Callable[[Any, Any, Any], Any]:
        """The loss of labels, predictions and the records' weights, or None for these."""
        if isinstance(loss, str):
            try:
                loss = keras.losses.get(loss)
            except ValueError as error:
                raise UserError(f"{self._file}: {what}: {error}") from error
        if not callable(loss):
            raise UserError(
                f"{self._file}: {what} is a {type(loss).__name__}; it must be a function of labels "
                "and predictions, a keras.losses.Loss, or the name of one"
            )
        unweighted: Callable[[Any, Any], Any] = loss

        def function(labels: Any, predictions: Any, weights: Any) -> Any:
            if weights is None:
                return unweighted(labels, predictions)
            if isinstance(loss, keras.losses.Loss):
                return loss(labels, predictions, sample_weight=weights)
            values = unweighted(labels, predictions)
            return weighted(values, weights, f"{self._file}: {what}", self._refuse)

        if is_keras_own(loss):
            # Some of them take tensors of one rank only; Keras sees to that when it compiles.
            return lambda labels, predictions, weights: function(
                *_of_one_rank(labels, predictions), weights
            )

        seen: set[tuple[Any, ...]] = set()

        def with_shapes(labels: Any, predictions: Any, weights: Any) -> Any:
            ranks = tuple(
                getattr(each.shape, "rank", None) for each in tf.nest.flatten([labels, predictions])
            )
            # Once, as the step is traced; eagerly, this is called for each batch.
            if ranks not in seen and (fault := pairs_all(unweighted, labels, predictions)):
                self._refuse(f"{self._file}: {what} {fault}")
            seen.add(ranks)
            try:
                return function(labels, predictions, weights)
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                if (hint := _of_shapes(labels, predictions, str(error))) is None:
                    raise
                self._refuse(f"{self._file}: {what} raised {summary(error)}. {hint}")

        return with_shapes

    def _checked(self, weights: Any) -> dict[Any, float]:
        if weights is None:
            return dict.fromkeys(self.parts, 1.0)
        if not self.parts:
            raise UserError(
                f"{self._file}: loss_weights needs a loss for each output: make loss a dict or list"
            )
        given = dict(weights) if isinstance(weights, Mapping) else dict(enumerate(weights))
        if unknown := [key for key in given if key not in self.parts]:
            raise UserError(
                f"{self._file}: loss_weights names {unknown[0]!r}, which has no loss; there are "
                f"{', '.join(map(repr, self.parts))}"
            )
        return {key: float(given.get(key, 1.0)) for key in self.parts}

    def __call__(self, labels: Any, predictions: Any, weights: Any = None) -> tf.Tensor:
        """The scalar: each loss averaged over its records, weighed and added up.

        weights: of the records, a tensor [batch] or one for each output; None for none.
        """
        if self._whole is not None:
            if isinstance(weights, Mapping | list | tuple):
                self._refuse(
                    f"{self._file}: feed gives a {type(weights).__name__} of weights, but loss is "
                    "one function: give one weight a record, or make loss a dict or list, too"
                )
            return _mean(self._whole(labels, predictions, weights))
        self.check(labels, predictions)
        if isinstance(weights, Mapping | list | tuple):
            self._has_keys(weights, "feed gives weights for")
        return tf.add_n(
            [
                self._weights[key] * _mean(self._of_output(key, labels, predictions, weights))
                for key in self.parts
            ]
        )

    def _of_output(self, key: Any, labels: Any, predictions: Any, weights: Any = None) -> Any:
        return self.parts[key](*(part_of(each, key) for each in (labels, predictions, weights)))

    def named(self) -> dict[str, Callable[[Any, Any, Any], Any]]:
        """The loss of each output, by the name under which it is reported.

        Each is a function of labels, predictions and the records' weights, without `loss_weights`.
        """
        return {f"{output_name(key)}_loss": partial(self._of_output, key) for key in self.parts}

    def check(self, labels: Any, predictions: Any) -> None:
        """Raises UserError unless each loss has its output and its labels."""
        self._has_keys(predictions, "the model gives outputs")
        if isinstance(labels, Mapping | list | tuple):
            self._has_keys(labels, "feed gives labels")

    def _has_keys(self, structure: Any, what: str) -> None:
        if isinstance(structure, Mapping):
            known = list(structure)
        elif isinstance(structure, list | tuple):
            known = list(range(len(structure)))
        else:
            self._refuse(
                f"{self._file}: loss has {len(self.parts)} entries, but the model gives a single "
                "output"
            )
        for key in self.parts:
            if key not in known:
                hint = near(str(key), map(str, known), most=1)
                self._refuse(
                    f"{self._file}: there is a loss for {key!r}{hint}, but {what} "
                    f"{', '.join(map(repr, known))}"
                )


def _of_shapes(labels: Any, predictions: Any, error: str) -> str | None:
    """What to do about an error of shapes, where one of the two has a last axis of 1 more.

    None where that is not the case, or the error is about something else.
    """
    if not re.search(r"shape|rank|dimension|broadcast|incompatible", error, re.IGNORECASE):
        return None
    ours, theirs = _of_one_rank(labels, predictions)
    if ours is labels and theirs is predictions:
        return None
    of_labels, of_predictions = (
        "[" + ", ".join(["batch", *(str(size) for size in each.shape[1:])]) + "]"
        for each in (labels, predictions)
    )
    longer = "predictions" if ours is not labels else "labels"
    shorter = "labels" if ours is not labels else "predictions"
    return (
        f"The labels have the shape {of_labels}, the predictions {of_predictions}: give both the "
        f"same in loss, with tf.squeeze({longer}, -1) or {shorter}[..., None]"
    )


def _of_one_rank(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Both, the one that lacks a last axis of one element with that axis."""
    of_labels, given = getattr(labels, "shape", None), getattr(predictions, "shape", None)
    if of_labels is None or given is None or of_labels.rank is None or given.rank is None:
        return labels, predictions
    if given.rank == of_labels.rank + 1 and given[-1] == 1:
        labels = labels[..., None]
    elif of_labels.rank == given.rank + 1 and of_labels[-1] == 1:
        predictions = predictions[..., None]
    return labels, predictions


def _mean(loss: Any) -> tf.Tensor:
    """A loss per record, averaged; a scalar as it is."""
    return tf.reduce_mean(tf.cast(loss, tf.float32))
