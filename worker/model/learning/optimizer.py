"""Keras optimizers as the specifications that servers run.

Owns which of them shoal supports, and the clipping of gradients before they are
pushed. The arithmetic of an update is native/'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from shoal.errors import UserError
from shoal.native.optimizers import OptimizerSpec
from shoal.worker.code.keras_internals import excludes_from_weight_decay, given_learning_rate
from shoal.worker.code.module import user_code
from shoal.worker.engines import backend_of_keras

CLIPPING = ("clipvalue", "clipnorm", "global_clipnorm")


class ServedOptimizer:
    """The user's optimizer, split into what servers do and what the worker does.

    spec: the update rule, run by the servers.
    accumulated: its gradient_accumulation_steps; 1 if there are none.
    The learning rate is evaluated and gradients are clipped by the worker, which alone
    holds the schedule and the whole of a variable's gradient.
    """

    def __init__(self, optimizer: Any, what: str) -> None:
        """what: the function it came from, for errors. Raises UserError if unsupported."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise UserError(
                f"{what} returned {type(optimizer).__name__}, not a keras.optimizers.Optimizer"
            )
        config = optimizer.get_config()
        self.accumulated: int = config.pop("gradient_accumulation_steps", None) or 1
        self._clip = {name: config.pop(name) for name in CLIPPING if config.get(name)}
        if excludes_from_weight_decay(optimizer):
            raise UserError(f"{what}: exclude_from_weight_decay is not supported")
        try:
            self.spec = OptimizerSpec.from_keras(type(optimizer).__name__, config)
        except ValueError as error:
            raise UserError(f"{what}: {error}") from error
        self._rate = given_learning_rate(optimizer)
        self._what = what

    def learning_rate(self, version: int) -> float:
        """The rate at model version `version`, by the schedule or function if there is one.

        Raises UserCodeError if that raises.
        """
        with user_code(f"the learning rate of {self._what}"):
            if isinstance(self._rate, keras.optimizers.schedules.LearningRateSchedule):
                return float(self._rate(version))
            return float(self._rate() if callable(self._rate) else self._rate)

    def clip(self, dense: Sequence[Any], tables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Clip gradients as Keras does; a table is one variable to its norms.

        dense: one a variable, None where there is none. tables: float32 [unique, dim].
        """
        gradients = backend_of_keras().clipped([*dense, *tables], self._clip)
        return gradients[: len(dense)], gradients[len(dense) :]
