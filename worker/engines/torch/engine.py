"""The engine of PyTorch, as engines/engine.py wants one: names what does each part."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.errors import UserError
from shoal.native.cores import allowed_cores
from shoal.worker.engines.engine import Engine
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.engines.torch.build import build_module, check_features, seed_all
from shoal.worker.engines.torch.dense import FlatTensors
from shoal.worker.engines.torch.evaluation import Evaluator
from shoal.worker.engines.torch.exporter import TorchExporter
from shoal.worker.engines.torch.learning.losses import Losses, weights_of_classes
from shoal.worker.engines.torch.learning.optimizers import optimizers_of
from shoal.worker.engines.torch.steps import EagerSteps
from shoal.worker.engines.torch.tensors import array_of, tensors

_CLASS = re.compile(r"Target (-?\d+) is out of bounds")


class Torch:
    """See the Protocol."""

    pipeline = partial(HostPipeline, arrays=tensors)
    build = staticmethod(build_module)
    check_optimizer = staticmethod(optimizers_of)
    any_optimizer = staticmethod(partial(torch.optim.SGD, lr=0.01))
    check_features = staticmethod(check_features)
    dense = FlatTensors
    losses = Losses
    steps = EagerSteps
    evaluator = Evaluator
    weights_of_classes = staticmethod(weights_of_classes)
    exporter = TorchExporter
    eagerly = staticmethod(contextlib.nullcontext)
    seed = staticmethod(seed_all)

    def share_cores(self, processes: int) -> None:
        """See the Protocol. PyTorch's threads wait for each other after each operation.

        Where there are more of them than cores, an operation takes as long as others' turns on
        the cores do. A user's OMP_NUM_THREADS stands.
        """
        threads = max(1, allowed_cores() // processes)
        if "OMP_NUM_THREADS" not in os.environ and threads < torch.get_num_threads():
            torch.set_num_threads(threads)

    def ids(self, model: Any, features_spec: Any, refusals: Any, file: str) -> Any:
        """Not for modules of PyTorch, whose build finds them."""
        raise NotImplementedError

    def recording(self, refusals: Any) -> Any:
        """Not for modules of PyTorch, which are built without being called."""
        raise NotImplementedError

    def clipped(self, gradients: Sequence[Any], limits: Mapping[str, float]) -> list[Any]:
        """Gradients as they are: optimizers of PyTorch have no limits."""
        del limits
        return list(gradients)

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

    def spec_of_input(self, tensor: Any) -> Any:
        """Not for modules of PyTorch, which do not say what they take."""
        raise NotImplementedError

    def activation(self, predictions: Any) -> None:
        """None: nothing is noted of the operations of a step."""

    def scattered(self, ids: Any, rows_of: Any, dim: int) -> None:
        """None: ids are dense."""

    def kernel_layouts(self, model: Any, features_spec: Any) -> Any:
        """Raises UserError: which part of a kernel is whose inputs' is not known."""
        del model, features_spec
        raise UserError(
            "checkpoint migrate: which weights of a torch.nn.Module belong to which features is "
            "not known, so checkpoints of other layers cannot be migrated: keep the layers' sizes, "
            "or train on from --restore-from with new layers"
        )

    def joined(self, parts: Sequence[Any]) -> npt.NDArray[Any]:
        """See the Protocol."""
        return np.concatenate([array_of(each) for each in parts])


ENGINE: Engine = Torch()
