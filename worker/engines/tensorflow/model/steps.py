"""The compiled training step and prediction of a model whose values were pulled.

Owns the traced functions and the form of what goes in and comes out. Where the
values come from and where gradients go is worker/model/model.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.native.gradients import sum_by_inverse
from shoal.worker.attribution import attributing
from shoal.worker.code.keras_internals import masks_of, note_masks, taken_features
from shoal.worker.engines.tensorflow.model import dependencies
from shoal.worker.engines.tensorflow.model.flat import FlatVariables
from shoal.worker.engines.tensorflow.model.id_trace import IdTrace
from shoal.worker.engines.tensorflow.model.lookups import RowsLookup
from shoal.worker.engines.tensorflow.tensors import tensor_of
from shoal.worker.input.batch import Batch
from shoal.worker.model.built import BuiltModel
from shoal.worker.model.refusals import Refusals
from shoal.worker.servers.pulling import Pulled

Float32 = npt.NDArray[np.float32]

TensorInputs = tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]
"""Flat trainable and non-trainable values, rows of each table, inverse of each call."""

StepOutputs = tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[tf.Tensor], Any]
"""Loss, gradient of the flat trainable vector, change of the flat non-trainable one, and
the gradient of each table's rows, float32 [unique, dim]; at last outputs, losses of layers and
masks, if they are kept."""


class CompiledSteps:
    """Training step and prediction of a model, each one tf.function of fixed signature.

    labels_spec, weights_spec: of a batch; labels_spec may be None where nothing is trained, and
        weights_spec where feed gives no weights.
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
        assert isinstance(built.trainable, FlatVariables)
        assert isinstance(built.state, FlatVariables)
        assert isinstance(built.ids, IdTrace)
        self._model = built.model
        self._clip_at_once, self._keeps = clip_at_once, keeps_predictions
        self._kept: Any = ()
        self._loss = built.training_loss
        self._optimizers = built.optimizers
        self._trainable, self._state = built.trainable, built.state
        self._dims = dims = {name: table.dim for name, table in built.tables.items()}
        self._positions = {name: i for i, name in enumerate(dims)}
        self._ids = built.ids
        self._refusals = refusals
        self._features_spec = features_spec = built.features_spec
        self._lookups: list[RowsLookup] = []  # of the traced training step
        self._traced: Any = None  # of the training step, once that is checked
        self._learns = True  # some value has a gradient by the traced loss
        self._train: Any = tf.function(
            self._training_step,
            # From the dataset, not from the first batch, whose length and rank may be special.
            input_signature=(
                None
                if labels_spec is None
                else [features_spec, labels_spec, _as_argument(weights_spec), *self._inputs_spec()]
            ),
            autograph=False,
        )
        self._predict: Any = tf.function(self._prediction, reduce_retracing=True, autograph=False)
        self._predicted = False
        self._clip: Any = tf.function(
            self._clipped,
            input_signature=[
                tf.TensorSpec([self._trainable.size]),
                [tf.TensorSpec([None, dim]) for dim in dims.values()],
            ],
            autograph=False,
        )

    def inputs(self, pulled: Pulled) -> TensorInputs:
        """The tensors of what was pulled."""
        return (
            # Copied, as the next pull may give the same vectors, and TensorFlow's variables take
            # the memory of what they are assigned.
            tensor_of(pulled.trainable, copy=True),
            tensor_of(pulled.state, copy=True),
            [tensor_of(each) for each in pulled.rows],
            self._ids.inverses(pulled.ids),
        )

    def train(
        self, batch: Batch, inputs: TensorInputs, change: Float32 | None
    ) -> tuple[float, Float32, Float32, list[Float32]]:
        """Run the step on a batch; traced at the first call.

        change: to be added to the statistics that were pulled; None for none. Raises UserError if
        the step looks up ids that cannot be known before it.
        """
        trainable, state, *rows = inputs
        if change is not None:
            state = state + change
        weights = _as_argument(batch.weights)
        arguments = batch.features, batch.labels, weights, trainable, state, *rows
        if self._traced is None:
            with attributing(None):  # no record is at fault where tracing fails
                self._traced = self._checked(*arguments)
        # The one trace there is: finding it by the arguments, at each call, took 0.4 ms of Python.
        outputs: StepOutputs = self._traced(*arguments)
        loss, dense, moved, tables, self._kept = outputs
        # Not numpy() of the rows, which copies: nobody writes to these.
        return float(loss), dense.numpy(), moved.numpy(), [np.asarray(each) for each in tables]

    def predictions(self) -> tuple[Any, tf.Tensor]:
        """See the Protocol."""
        outputs, of_layers, masks = self._kept
        note_masks(outputs, masks)
        return outputs, of_layers

    def clip(self, dense: Float32, tables: Sequence[Float32]) -> tuple[Float32, list[Float32]]:
        """Clip the gradient of the flat trainable vector, and those of all tables."""
        flat, rows = self._clip(tf.constant(dense), [tf.constant(each) for each in tables])
        return flat.numpy(), [each.numpy() for each in rows]

    def _checked(self, *arguments: Any) -> Any:
        """Trace the step; raises as `train`."""
        traced = self._train.get_concrete_function(*arguments)
        lookup = self._lookups[-1]
        reason = dependencies.refused(
            traced.graph,
            lookup.ids,
            lookup.names,
            {each.name: name for name, each in zip(self._dims, lookup.rows, strict=True)},
            self._trainable.variables,
        )
        if reason is None and not self._learns:
            reason = (
                "the loss has no gradient, so nothing would be learned: compute it from the "
                "predictions by operations that have one, without argmax, rounding or a cast to "
                "integers"
            )
        if reason is not None:
            raise UserError(reason)
        return traced

    def predict(self, features: Any, inputs: TensorInputs) -> tuple[Any, tf.Tensor]:
        """Return the model's outputs for features, and the losses of its layers.

        The outputs have the masks that Keras noted on them. The losses are one float32 number,
        which a model's regularizers add up to. Traced at the first call.
        """
        if not self._predicted:
            with attributing(None):
                self._predict.get_concrete_function(features, *inputs)
            self._predicted = True
        outputs, of_layers, masks = self._predict(features, *inputs)
        # Attributes of tensors do not come out of a traced function.
        note_masks(outputs, masks)
        return outputs, of_layers

    def trace_prediction(self, features_spec: Any) -> None:
        """Trace `predict` for batches of another spec. Raises what the model raises."""
        self._predict.get_concrete_function(features_spec, *self._inputs_spec())

    def _inputs_spec(self) -> tuple[Any, ...]:
        """The specs of TensorInputs."""
        return (
            tf.TensorSpec([self._trainable.size]),
            tf.TensorSpec([self._state.size]),
            [tf.TensorSpec([None, dim]) for dim in self._dims.values()],
            [tf.TensorSpec([None], tf.int32) for _ in self._ids.calls],
        )

    def predictions_spec(self) -> Any:
        """The spec of the outputs that `predict` gives."""
        traced = self._predict.get_concrete_function(self._features_spec, *self._inputs_spec())
        return tf.nest.map_structure(tf.type_spec_from_value, traced.structured_outputs[0])

    def _lookup(self, rows: Sequence[tf.Tensor], inverses: Sequence[tf.Tensor]) -> RowsLookup:
        return RowsLookup(self._refusals, self._positions, rows, inverses, self._ids.calls)

    def _training_step(
        self,
        features: Any,
        labels: Any,
        weights: Any,
        trainable: tf.Tensor,
        state: tf.Tensor,
        rows: Sequence[tf.Tensor],
        inverses: Sequence[tf.Tensor],
    ) -> StepOutputs:
        self._trainable.assign(trainable)
        self._state.assign(state)
        # `value` is TensorFlow's own variable, which is what a tape knows.
        variables = [variable.value for variable in self._trainable.variables]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            self._lookups.append(self._lookup(rows, inverses))
            with lookup_with(self._lookups[-1]):
                predictions = self._model(taken_features(self._model, features), training=True)
            loss = self._loss(labels, predictions, _weights_of(weights))
            loss += (of_layers := self._of_layers())
        gradients = tape.gradient(loss, variables + list(rows))
        self._learns = not gradients or any(each is not None for each in gradients)
        count = len(variables)
        tables = [
            _summed(gradient, table)
            for gradient, table in zip(gradients[count:], rows, strict=True)
        ]
        dense = [None if each is None else tf.convert_to_tensor(each) for each in gradients[:count]]
        if self._clip_at_once:
            dense, tables = self._optimizers.clip(dense, tables)
        change = self._state.read() - state
        kept = (predictions, of_layers, masks_of(predictions)) if self._keeps else ()
        return loss, self._trainable.pack(dense), change, tables, kept

    def _clipped(
        self, flat: tf.Tensor, tables: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        dense, tables = self._optimizers.clip(self._trainable.unpack(flat), tables)
        return self._trainable.pack(dense), tables

    def _prediction(
        self,
        features: Any,
        trainable: tf.Tensor,
        state: tf.Tensor,
        rows: Sequence[tf.Tensor],
        inverses: Sequence[tf.Tensor],
    ) -> tuple[Any, tf.Tensor, list[Any]]:
        self._trainable.assign(trainable)
        self._state.assign(state)
        with lookup_with(self._lookup(rows, inverses)):
            outputs = self._model(taken_features(self._model, features), training=False)
            return outputs, self._of_layers(), masks_of(outputs)

    def _of_layers(self) -> tf.Tensor:
        """The summed losses that the model's layers added in its last call, as regularizers do."""
        losses = [tf.cast(each, tf.float32) for each in self._model.losses]
        return tf.add_n(losses) if losses else tf.constant(0.0)


def _as_argument(weights: Any) -> Any:
    """Weights, or their spec, as the signature of a tf.function has them: () for None."""
    return () if weights is None else weights


def _weights_of(given: Any) -> Any:
    return None if isinstance(given, tuple) and not given else given


def _summed(gradient: Any, rows: tf.Tensor) -> tf.Tensor:
    """A table's gradient as one row per unique id, float32 [unique, dim]."""
    if gradient is None:
        return tf.zeros_like(rows)
    if isinstance(gradient, tf.IndexedSlices):
        # Not unsorted_segment_sum, which takes eight times as long: 9.4 ms of CPU against
        # 1.1 for 106,496 rows of 16 columns, a sixth of the whole step of a DeepFM.
        summed = tf.numpy_function(
            sum_by_inverse,
            [gradient.values, tf.cast(gradient.indices, tf.int32), tf.shape(rows)[0]],
            tf.float32,
            stateful=False,
        )
        summed.set_shape(rows.shape)
        return summed
    return gradient
