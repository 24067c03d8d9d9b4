"""The engine of JAX, as engines/engine.py wants one: names what does each part."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.errors import UserError
from shoal.worker.code.keras_internals import hide_tensorflow
from shoal.worker.code.module import summary
from shoal.worker.engines.engine import Engine
from shoal.worker.engines.jax.build import build
from shoal.worker.engines.jax.by_values import looked_at
from shoal.worker.engines.jax.evaluation import Evaluator
from shoal.worker.engines.jax.outputs.exporter import JaxExporter
from shoal.worker.engines.jax.pipeline import Pipeline
from shoal.worker.engines.jax.steps import CompiledSteps
from shoal.worker.engines.keras_ops.build import NO_LAYOUTS
from shoal.worker.model.keras_models import optimizers_of
from shoal.worker.model.supported import check_features

hide_tensorflow()
# Inputs of int64 are 32-bit ones in a step, and steps.py sees to their values.
warnings.filterwarnings("ignore", "Explicitly requested dtype")


class Jax:
    """See the Protocol."""

    build = staticmethod(build)
    check_optimizer = staticmethod(optimizers_of)
    any_optimizer = keras.optimizers.SGD
    check_features = staticmethod(check_features)
    pipeline = Pipeline
    steps = CompiledSteps
    evaluator = Evaluator
    exporter = JaxExporter

    def explained(
        self, error: BaseException | None, model: Any, module: Any, labels: Any
    ) -> str | None:
        """See the Protocol: what JAX raises has no values of a batch, but some constants."""
        del model, labels
        if (message := looked_at(error, module.path.name)) is not None:
            return message
        if not isinstance(error, OverflowError):
            return None
        return (
            f"the model of {module.path.name} computes with a number that is no 32-bit one "
            f"({summary(error)}): in a step of JAX integers have 32 bits, so compute such ids in "
            f"{module.feed_name}"
        )

    def share_cores(self, processes: int) -> None:
        """Not done: its threads take parts of operations as they are free, so many cost little."""

    def kernel_layouts(self, model: Any, features_spec: Any) -> Any:
        """See the Protocol. Raises UserError."""
        del model, features_spec
        raise UserError(NO_LAYOUTS)

    def joined(self, parts: Sequence[Any]) -> npt.NDArray[Any]:
        """See the Protocol."""
        return np.concatenate(parts)


ENGINE: Engine = Jax()
