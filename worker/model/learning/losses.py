"""The losses that a module declares: one, or one for each output.

Owns how `loss`, `loss_weights` and the model's outputs belong together. Metrics are
evaluation.py's, and what a loss computes the engine's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from shoal.base.words import near
from shoal.errors import UserError
from shoal.worker.code.of_keras import is_of_keras
from shoal.worker.model.learning.outputs import output_name, part_of


class DeclaredLosses(ABC):
    """The losses that a module's `loss` and `loss_weights` declare.

    loss: one of `kinds`; or a dict or list of these, one for each output of the model.
    weights: None, or a number for each output, in the same form.
    refuse: raises UserError with a message, so that it comes out of a traced function whole.
    kinds: what a loss may be, in words.
    """

    kinds = "a function of labels and predictions, a keras.losses.Loss, or the name of one"

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
            loss = self._by_name(loss, what)
        if not callable(loss):
            raise UserError(
                f"{self._file}: {what} is a {type(loss).__name__}; it must be {self.kinds}"
            )
        whose = f"{self._file}: {what}"
        if self._is_object(loss):
            return self._of_object(loss, whose)
        return self._of_function(loss, whose)

    def _by_name(self, name: str, what: str) -> Any:
        """The loss of a name. what: which it is, for messages. Raises UserError for none."""
        import keras  # late: a PyTorch module has no loss by a name of Keras's

        try:
            return keras.losses.get(name)
        except ValueError as error:
            raise UserError(f"{self._file}: {what}: {error}") from error

    def _is_object(self, loss: Any) -> bool:
        """True for a loss of the framework's own, which `_of_object` takes."""
        return is_of_keras(loss, "losses.Loss")

    @abstractmethod
    def _of_object(self, loss: Any, whose: str) -> Callable[[Any, Any, Any], Any]:
        """The function, as of `_function`, of a loss of the framework's. whose: for messages."""

    @abstractmethod
    def _of_function(self, loss: Any, whose: str) -> Callable[[Any, Any, Any], Any]:
        """The function, as of `_function`, of a function of labels and predictions."""

    @abstractmethod
    def _mean(self, loss: Any) -> Any:
        """A loss per record, averaged; a scalar as it is."""

    @abstractmethod
    def _added(self, losses: Sequence[Any]) -> Any:
        """The sum of scalars."""

    @abstractmethod
    def weights_of_classes(self, labels: Any, table: Sequence[float]) -> Any:
        """The weight of each record by its class, float32 [batch].

        labels: classes, [batch] or [batch, 1], or one-hot, [batch, classes], as in Keras.
        table: the weight of each class from 0 on, and last that of all other classes.
        """

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

    def __call__(self, labels: Any, predictions: Any, weights: Any = None) -> Any:
        """The scalar: each loss averaged over its records, weighed and added up.

        weights: of the records, [batch] or one for each output; None for none.
        """
        if self._whole is not None:
            if isinstance(weights, Mapping | list | tuple):
                self._refuse(
                    f"{self._file}: feed gives a {type(weights).__name__} of weights, but loss is "
                    "one function: give one weight a record, or make loss a dict or list, too"
                )
            return self._mean(self._whole(labels, predictions, weights))
        self.check(labels, predictions)
        if isinstance(weights, Mapping | list | tuple):
            self._has_keys(weights, "feed gives weights for")
        return self._added(
            [
                self._weights[key] * self._mean(self._of_output(key, labels, predictions, weights))
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
