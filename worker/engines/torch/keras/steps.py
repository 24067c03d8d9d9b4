"""The training step and the prediction of a model of Keras whose values were pulled.

The step is that of a module, whose parameters the variables are; Keras's own are the losses of
layers, masks, and what is told of whether it is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.nested import named_leaves
from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.worker.code.keras_internals import masks_of, note_masks, taken_features
from shoal.worker.engines.keras_ops.clipping import clipped_flat
from shoal.worker.engines.torch.keras.lookups import LayerVectors
from shoal.worker.engines.torch.steps import EagerSteps, Inputs
from shoal.worker.engines.torch.tensors import array_of
from shoal.worker.input.batch import Batch
from shoal.worker.model.built import BuiltModel
from shoal.worker.model.embeddings.keras_embeddings import noting_others, out_of_range
from shoal.worker.model.refusals import Refusals

Float32 = npt.NDArray[np.float32]


class KerasSteps(EagerSteps):
    """Training step and prediction of a model.

    clip_at_once: whether the training step clips; otherwise `clip` is to be called.
    keeps_predictions: for `predictions`.
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
        """Raises UserError for labels of text."""
        super().__init__(
            built, refusals, labels_spec, weights_spec, keeps_predictions=keeps_predictions
        )
        self._optimizers = built.optimizers
        self._clip_at_once = clip_at_once
        for name, spec in named_leaves(labels_spec):
            if spec is not None and spec.is_text:
                module = built.module
                what = f"labels {name!r}" if name else "labels"
                raise UserError(
                    f"{module.describe(module.feed_name)} gives text as {what}, and the loss takes "
                    f"numbers: make numbers of them in {module.feed_name}, such as "
                    '(labels == b"yes").astype("float32")'
                )

    def train(
        self, batch: Batch, inputs: Inputs, change: Float32 | None
    ) -> tuple[float, Float32, Float32, list[Float32]]:
        """See the Protocol. Raises UserError if nothing is learned."""
        loss, dense, moved, tables = super().train(batch, inputs, change)
        if self._clip_at_once:
            dense, tables = self.clip(dense, tables)
        return loss, dense, moved, tables

    def clip(self, dense: Float32, tables: Sequence[Float32]) -> tuple[Float32, list[Float32]]:
        """Clip the gradient of the flat trainable vector, and those of all tables."""
        return clipped_flat(self._optimizers, self._trainable.manifest, dense, tables)

    def _loss_in_training(self, batch: Batch, lookup: Any) -> torch.Tensor:
        predictions = self._called(batch.features, lookup, training=True)
        loss: torch.Tensor = self._training_loss(batch.labels, predictions, batch.weights)
        of_layers = self._of_layers()
        self._keep(predictions, of_layers.detach())
        return loss + of_layers

    def _keep(self, predictions: Any, of_layers: Any = 0.0) -> None:
        super()._keep(predictions, of_layers)
        if self._keeps:
            note_masks(self._kept[0], masks_of(predictions))

    def _called(self, features: Any, lookup: Any, *, training: bool) -> Any:
        """The model's outputs. Raises UserError for an id that a layer of the worker has not."""
        with lookup_with(lookup), noting_others() as others:
            try:
                outputs = self._model(taken_features(self._model, features), training=training)
            except IndexError:
                self._check_range(others)
                raise
        # PyTorch counts negative ones from the end.
        self._check_range(others)
        return outputs

    def _check_range(self, others: Sequence[tuple[Any, Any]]) -> None:
        for layer, ids in others:
            reason = out_of_range(layer, array_of(ids).astype(np.int64, copy=False))
            if reason is not None:
                self._refusals.refuse(reason)

    def _of_layers(self) -> torch.Tensor:
        """The losses of the layers that were called last, and of weights, one number."""
        losses = [each.to(torch.float32) for each in self._model.losses]
        return torch.stack(losses).sum() if losses else torch.zeros(())

    def predict(self, features: Any, inputs: Inputs) -> tuple[Any, torch.Tensor]:
        """Return the model's outputs for features, and the losses of its layers."""
        self._assign(inputs.trainable, inputs.state)
        lookup = self._lookup([torch.from_numpy(each) for each in inputs.vectors], inputs)
        with torch.no_grad():
            outputs = self._called(features, lookup, training=False)
            of_layers = self._of_layers()
        lookup.check_all_called()
        return outputs, of_layers

    def _lookup(self, vectors: Sequence[torch.Tensor], inputs: Inputs) -> LayerVectors:
        return LayerVectors(self._refusals, self._ids.calls, vectors, inputs.expected)
