"""The framework beneath Keras as the code for Keras's models knows it, in no framework's words.

Owns the Protocol of what is computed beside such a model: of a model's step, it is engine.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from shoal.worker.engines.engine import Dense, Ids
    from shoal.worker.model.learning.losses import DeclaredLosses
    from shoal.worker.model.refusals import Refusals


class KerasBackend(Protocol):
    """The part of an engine that is for models of Keras alone."""

    def ids(self, model: Any, features_spec: Any, refusals: Refusals, file: str) -> Ids:
        """The ids of a model, not found yet. file: of the user's, for messages."""

    def recording(self, refusals: Refusals) -> Any:
        """A lookup for `shoal.layers.lookup_with`, under which a model can be built."""

    def dense(self, variables: Sequence[Any]) -> Dense:
        """Variables as one vector. Raises UserError if one is not float32."""

    def losses(
        self, loss: Any, weights: Any, file: str, refuse: Callable[[str], NoReturn]
    ) -> DeclaredLosses:
        """The losses that a module declares. Raises UserError if they are none."""

    def clipped(self, gradients: Sequence[Any], limits: Mapping[str, float]) -> list[Any]:
        """Gradients within an optimizer's limits, by the names of its arguments."""

    def spec_of_input(self, tensor: Any) -> Any:
        """The spec of features that a symbolic input of a model takes."""

    def activation(self, predictions: Any) -> tuple[str, str] | None:
        """The operation that made chances of logits in a step, and the scope of its layer.

        None if nothing did, or what did is not known.
        """

    def eagerly(self) -> AbstractContextManager[Any]:
        """Compute at once in the body, also where a model is being traced."""

    def seed(self, number: int) -> None:
        """Seed the numbers that the user's code draws from the framework."""
