"""The training step and the prediction of a module whose values were pulled.

Owns the order of a step: parameters become views of the flat vector, calls of embeddings get their
vectors as leaves, and autograd gives the gradients of all. Where values come from and where
gradients go is worker/model/model.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.nested import mapped
from shoal.errors import UserError
from shoal.torch.lookups import lookup_with
from shoal.worker.attribution import attributing
from shoal.worker.engines.host.vectors import gathered, summed
from shoal.worker.engines.torch.dense import FlatTensors
from shoal.worker.engines.torch.ids import TracedIds
from shoal.worker.engines.torch.learning.losses import LossOfStep
from shoal.worker.engines.torch.lookups import GivenVectors, without_compiler
from shoal.worker.input.batch import Batch
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.built import BuiltModel
from shoal.worker.model.refusals import Refusals
from shoal.worker.servers.ids import TableIds
from shoal.worker.servers.pulling import Pulled

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Inputs:
    """The values that a step computes with.

    trainable, state: the flat vectors, of this step alone. vectors: of each call, [ids, dim]. ids:
    of each table, as pulled. expected: as of GivenVectors.
    """

    trainable: Float32
    state: Float32
    vectors: list[Float32]
    ids: list[TableIds]
    expected: list[npt.NDArray[np.int64]]


class EagerSteps:
    """Training step and prediction of a module.

    clip_at_once: has no effect, as nothing clips. keeps_predictions: for `predictions`.
    """

    def __init__(
        self,
        built: BuiltModel,
        refusals: Refusals,
        labels_spec: Any,
        weights_spec: Any = None,
        *,
        clip_at_once: bool = True,
        keeps_predictions: bool = False,
    ) -> None:
        """Raises UserError for predictions that are to be kept, and that a module gives nobody."""
        del labels_spec, weights_spec, clip_at_once
        assert isinstance(built.trainable, FlatTensors)
        assert isinstance(built.state, FlatTensors)
        assert isinstance(built.ids, TracedIds)
        self._model = built.model
        self._loss: Any = built.loss
        self._training_loss = built.training_loss
        self._keeps = keeps_predictions
        self._kept: tuple[Any, Any] = None, 0.0
        if keeps_predictions and built.module.training_step is not None:
            raise UserError(
                f"--progressive-steps: {built.module.describe('training_step')} gives a loss and "
                "no predictions to evaluate: define loss(labels, predictions) in its place, or "
                "give --validation-data"
            )
        self._trainable, self._state = built.trainable, built.state
        self._parameters = [each.tensor for each in built.trainable.variables]
        self._ids = built.ids
        self._refusals = refusals
        self._features_spec = built.features_spec
        positions = {name: i for i, name in enumerate(built.tables)}
        self._calls = [positions[name] for name in built.ids.calls]
        self._dims = [table.dim for table in built.tables.values()]
        self._trained = [each.layer.trainable for each in built.tables.values()]
        self._checked = False
        if any(each._compiled_call_impl is not None for each in self._model.modules()):
            without_compiler()

    def inputs(self, pulled: Pulled) -> Inputs:
        """The inputs of the other methods, made of what was pulled."""
        remaining = [list(each.inverses) for each in pulled.ids]
        # Compared with those of the step, at a hundredth of its price: a module may choose ids by
        # what no call before training has shown.
        expected = [pulled.ids[table].unique[remaining[table].pop(0)] for table in self._calls]
        return Inputs(
            # Copied, as the next pull may give the same vectors, and parameters are views of them.
            np.array(pulled.trainable),
            np.array(pulled.state),
            gathered(pulled.rows, pulled.ids, self._calls),
            pulled.ids,
            expected,
        )

    def train(
        self, batch: Batch, inputs: Inputs, change: Float32 | None
    ) -> tuple[float, Float32, Float32, list[Float32]]:
        """Compute a step on a batch; see the Protocol. Raises UserError if nothing is learned."""
        state = inputs.state if change is None else inputs.state + change
        before = state.copy()
        pulled = None if self._checked else inputs.trainable.copy()
        self._assign(inputs.trainable, state)
        versions = [each._version for each in self._parameters]
        vectors = [torch.from_numpy(each).requires_grad_() for each in inputs.vectors]
        lookup = self._lookup(vectors, inputs)
        loss = self._loss_in_training(batch, lookup)
        lookup.check_all_called()
        with attributing(None):
            self._check_writes(versions, pulled)
        if not self._checked:
            with attributing(None):
                self._check(loss)
            self._checked = True
        with lookup_with(self._called_again):
            gradients = torch.autograd.grad(
                loss, [*self._parameters, *vectors], allow_unused=True, materialize_grads=True
            )
        count = len(self._parameters)
        dense = (
            torch.cat([_dense(each).reshape(-1) for each in gradients[:count]]).numpy()
            if count
            else np.zeros(0, np.float32)
        )
        of_calls: list[Float32 | None] = [
            each.numpy() if self._trained[table] else None
            for table, each in zip(self._calls, gradients[count:], strict=True)
        ]
        tables = summed(of_calls, inputs.ids, self._calls, self._dims)
        return float(loss.detach()), dense, self._state.read() - before, tables

    def _loss_in_training(self, batch: Batch, lookup: Any) -> torch.Tensor:
        """The loss, with the vectors of a lookup."""
        self._model.train()
        with lookup_with(lookup):
            return self._loss_of(batch)

    def _loss_of(self, batch: Batch) -> torch.Tensor:
        if isinstance(self._loss, LossOfStep):
            return self._loss.of_batch(self._model, batch.features, batch.labels, batch.weights)
        predictions = self._model(batch.features)
        self._keep(predictions)
        loss: torch.Tensor = self._training_loss(batch.labels, predictions, batch.weights)
        return loss

    def _keep(self, predictions: Any, of_layers: Any = 0.0) -> None:
        if self._keeps:
            self._kept = mapped(torch.Tensor.detach, predictions), of_layers

    def predictions(self) -> tuple[Any, Any]:
        """See the Protocol."""
        return self._kept

    def _check_writes(self, versions: Sequence[int], pulled: Float32 | None) -> None:
        """Raises UserError for a parameter that forward() wrote to, which would be lost.

        versions: of the parameters before it, which writes through `.data` do not change. pulled:
        the values before it; None if these are not to be compared.
        """
        pairs = zip(self._trainable.manifest, self._parameters, versions, strict=True)
        for spec, each, version in pairs:
            same = each._version == version
            if same and pulled is not None:
                given = pulled[spec.offset : spec.offset + each.numel()]
                same = np.array_equal(each.detach().numpy().reshape(-1), given, equal_nan=True)
            if not same:
                raise UserError(
                    f"the model's code writes to its parameter {spec.name}, which the servers "
                    "hold and alone change: use a function of it in forward(), such as "
                    "weight.clamp(min=0), or torch.nn.utils.parametrize"
                )

    def _check(self, loss: torch.Tensor) -> None:
        if not _learns(loss):
            raise UserError(
                "the loss has no gradient, so nothing would be learned: compute it from the "
                "predictions by operations that have one, without argmax, rounding, detach() or a "
                "cast to integers"
            )

    def _called_again(self, table: Any, ids: Any) -> torch.Tensor:
        """Raises UserError: the lookup while gradients are computed."""
        del ids
        self._refusals.refuse(
            f"embedding {table.name!r} was called again while gradients are computed, as "
            "torch.utils.checkpoint does: call embeddings before the function that it gets"
        )

    def clip(self, dense: Float32, tables: Sequence[Float32]) -> tuple[Float32, list[Float32]]:
        """Gradients as they are: optimizers of PyTorch clip none."""
        return dense, list(tables)

    def predict(self, features: Any, inputs: Inputs) -> tuple[Any, float]:
        """Return the module's outputs in evaluation mode, and 0 for losses of layers."""
        lookup = self._evaluating(inputs)
        with lookup_with(lookup), torch.inference_mode():
            outputs = self._model(features)
        lookup.check_all_called()
        return outputs, 0.0

    def loss(self, batch: Batch, inputs: Inputs) -> float:
        """The loss of a batch in evaluation mode, where a module computes it with the model."""
        with lookup_with(self._evaluating(inputs)), torch.no_grad():
            return float(self._loss_of(batch))

    def _evaluating(self, inputs: Inputs) -> Any:
        self._assign(inputs.trainable, inputs.state)
        self._model.eval()
        return self._lookup([torch.from_numpy(each) for each in inputs.vectors], inputs)

    def _assign(self, trainable: Float32, state: Float32) -> None:
        self._trainable.assign(trainable)
        self._state.assign(state)

    def _lookup(self, vectors: Sequence[torch.Tensor], inputs: Inputs) -> Any:
        return GivenVectors(self._refusals, self._ids.calls, vectors, inputs.expected)

    def trace_prediction(self, features_spec: Any) -> None:
        """Call the module once with features of another spec. Raises what it raises."""
        self._sampled(features_spec)

    def predictions_spec(self) -> Any:
        """The spec of the outputs that `predict` gives, nested ArraySpecs."""

        def spec(tensor: torch.Tensor) -> ArraySpec:
            dtype = np.dtype(np.float32) if tensor.dtype == torch.bfloat16 else None
            shape = (None, *tensor.shape[1:])
            return ArraySpec(shape, dtype or torch.empty(0, dtype=tensor.dtype).numpy().dtype)

        return mapped(spec, self._sampled(self._features_spec))

    def _sampled(self, features_spec: Any) -> Any:
        """The outputs for a few records of zeros, with rows of zeros."""
        return self._ids.outputs_of_sample(features_spec)


_FLAT = ("Round", "Floor", "Ceil", "Trunc", "Sign", "Heaviside")
"""Beginnings of the names of autograd's steps whose gradients are zeros, whatever they get."""


def _learns(loss: torch.Tensor) -> bool:
    """True if a loss has a gradient that is not zero by what it is computed with."""
    if loss.grad_fn is None:
        return bool(loss.requires_grad)
    seen, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting:
        step = waiting.pop()
        if step.name().startswith(_FLAT):
            continue
        if hasattr(step, "variable"):  # of a leaf
            return True
        more = {each for each, _ in step.next_functions if each is not None} - seen
        seen |= more
        waiting += more
    return False


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient with all its zeros, which one of nn.Embedding(sparse=True) has not."""
    return gradient.to_dense() if gradient.is_sparse else gradient
