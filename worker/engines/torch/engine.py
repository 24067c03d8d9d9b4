"""The engine of PyTorch, as engines/engine.py wants one: names what does each part.

It trains modules of PyTorch and models of Keras, and which one a job has is known by its model.
What is about Keras's, in keras/, is imported only where Keras is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.errors import UserError
from shoal.native.cores import allowed_cores
from shoal.worker.code.module import UserModule
from shoal.worker.code.of_keras import is_of_keras
from shoal.worker.code.params import made_without_parameters
from shoal.worker.engines.engine import Engine, Exporter, Steps
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.engines.torch.build import build_module
from shoal.worker.engines.torch.evaluation import Evaluator
from shoal.worker.engines.torch.exporter import TorchExporter
from shoal.worker.engines.torch.learning.optimizers import optimizers_of
from shoal.worker.engines.torch.steps import EagerSteps
from shoal.worker.engines.torch.tensors import array_of, tensors
from shoal.worker.model.built import BuiltModel, ToBuild
from shoal.worker.model.evaluation import Evaluation
from shoal.worker.model.model import ServedModel

_CLASS = re.compile(r"Target (-?\d+) is out of bounds")


class Torch:
    """See the Protocol."""

    pipeline = partial(HostPipeline, arrays=tensors)

    def build(self, given: ToBuild) -> BuiltModel:
        """See the Protocol."""
        if "keras" not in sys.modules:
            return build_module(given)
        from shoal.worker.engines.torch.keras.build import build

        return build(given)

    def check_optimizer(self, module: UserModule) -> object:
        """See the Protocol. That of a model of Keras is made without parameters."""
        if not made_without_parameters(module.optimizer):
            return optimizers_of(module)
        from shoal.worker.model import keras_models

        return keras_models.optimizers_of(module)

    def any_optimizer(self, parameters: Any = None) -> Any:
        """See the Protocol. One of Keras where no parameters are given."""
        if parameters is not None:
            return torch.optim.SGD(parameters, lr=0.01)
        import keras

        return keras.optimizers.SGD()

    def check_features(self, model: Any, features_spec: Any, feed: str) -> None:
        """See the Protocol. A module does not say what it takes, and calling it tells."""
        if is_of_keras(model, "Model"):
            from shoal.worker.engines.torch.keras.build import check_features

            check_features(model, features_spec, feed)

    def steps(self, built: BuiltModel, *more: Any, **named: Any) -> Steps:
        """See the Protocol."""
        if not is_of_keras(built.model, "Model"):
            return EagerSteps(built, *more, **named)
        from shoal.worker.engines.torch.keras.steps import KerasSteps

        return KerasSteps(built, *more, **named)

    def evaluator(self, model: ServedModel, module: UserModule) -> Evaluation:
        """See the Protocol."""
        if not is_of_keras(model.model, "Model"):
            return Evaluator(model, module)
        from shoal.worker.engines.torch.keras.evaluation import KerasEvaluator

        return KerasEvaluator(model, module)

    def exporter(self, model: ServedModel, kinds: Set[str]) -> Exporter:
        """See the Protocol."""
        if not is_of_keras(model.model, "Model"):
            return TorchExporter(model, kinds)
        from shoal.worker.engines.torch.keras.exporter import KerasTorchExporter

        return KerasTorchExporter(model, kinds)

    def share_cores(self, processes: int) -> None:
        """See the Protocol. PyTorch's threads wait for each other after each operation.

        Where there are more of them than cores, an operation takes as long as others' turns on
        the cores do. A user's OMP_NUM_THREADS stands.
        """
        threads = max(1, allowed_cores() // processes)
        if "OMP_NUM_THREADS" not in os.environ and threads < torch.get_num_threads():
            torch.set_num_threads(threads)

    def explained(
        self, error: BaseException | None, model: Any, module: Any, labels: Any
    ) -> str | None:
        """See the Protocol."""
        del model, labels
        if not isinstance(error, IndexError):
            return None
        feed = module.describe(module.feed_name)
        if (beyond := _CLASS.search(str(error))) is not None:
            return (
                f"{feed} gives the label {beyond[1]}, which is none of the model's classes: give "
                "its output one number for each class, from 0 on, or map the labels in "
                f"{module.feed_name}"
            )
        if "index out of range in self" in str(error):
            return (
                "an id is not from 0 to num_embeddings - 1 of an nn.Embedding that the workers "
                f"keep: map the ids in {module.feed_name}, or use shoal.torch.Embedding, which "
                "takes any int64"
            )
        return None

    def kernel_layouts(self, model: Any, features_spec: Any) -> Any:
        """Raises UserError: which part of a kernel is whose inputs' is not known."""
        del features_spec
        if is_of_keras(model, "Model"):
            from shoal.worker.engines.keras_ops.build import NO_LAYOUTS

            raise UserError(NO_LAYOUTS)
        raise UserError(
            "checkpoint migrate: which weights of a torch.nn.Module belong to which features is "
            "not known, so checkpoints of other layers cannot be migrated: keep the layers' sizes, "
            "or train on from --restore-from with new layers"
        )

    def joined(self, parts: Sequence[Any]) -> npt.NDArray[Any]:
        """See the Protocol."""
        return np.concatenate([array_of(each) for each in parts])


ENGINE: Engine = Torch()
