"""The compiled training step and prediction of a model whose values were pulled.

Owns the traced functions and the form of what goes in and comes out. A step gets one vector an id
of each call, so its shapes follow from the batch alone. Where the values come from and where
gradients go is worker/model/model.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from shoal.base.nested import leaves, mapped, named_leaves
from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.worker.attribution import attributing
from shoal.worker.code.keras_internals import masks_of, note_masks
from shoal.worker.engines.host.vectors import gathered, summed
from shoal.worker.engines.jax.arrays import beyond, in_step, sample
from shoal.worker.engines.jax.dense import FlatVariables
from shoal.worker.engines.jax.ids import RECORDS, TracedIds
from shoal.worker.engines.jax.lookups import Vectors, called
from shoal.worker.engines.jax.programs import Program
from shoal.worker.engines.keras_ops.clipping import clipped_flat
from shoal.worker.input.batch import Batch
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.built import BuiltModel
from shoal.worker.model.refusals import Refusals
from shoal.worker.servers.ids import TableIds
from shoal.worker.servers.pulling import Pulled

Float32 = npt.NDArray[np.float32]

SIZES = 8
"""Of batches, each compiled by itself, until it is told what to do about it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """The values of a step. vectors: one a call, float32 [ids, dim]. ids: one a table."""

    trainable: Float32
    state: Float32
    vectors: list[Float32]
    ids: list[TableIds]


class CompiledSteps:
    """Training step and prediction of a model, compiled for each size of a batch.

    labels_spec, weights_spec: of a batch; labels_spec may be None where nothing is trained, and
        weights_spec where feed_batch gives no weights.
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
        assert isinstance(built.ids, TracedIds)
        self._built = built
        self._model = built.model
        self._clip_at_once, self._keeps = clip_at_once, keeps_predictions
        self._predicted: Any = ()
        self._loss = built.training_loss
        self._optimizers = built.optimizers
        self._trainable, self._state, self._ids = built.trainable, built.state, built.ids
        self._dims = [table.dim for table in built.tables.values()]
        self._refusals = refusals
        pushed = {id(variable) for variable in self._state.variables}
        # Each of the variables that change without a gradient: its place in the pushed state, or in
        # what this worker keeps, such as the seeds of dropout.
        self._is_state = [id(each) in pushed for each in self._model.non_trainable_variables]
        self._kept = [
            np.array(each.value)
            for each, its in zip(self._model.non_trainable_variables, self._is_state, strict=True)
            if not its
        ]
        self._features_spec = built.features_spec
        self._specs = built.features_spec, labels_spec, weights_spec
        self._names = [name or "the feature" for name, _ in named_leaves(built.features_spec)]
        self._read: dict[bool, list[int]] = {}  # in training or not: the features that it reads
        self._sizes: set[int] = set()
        self._train: Any = jax.jit(jax.value_and_grad(self._training, argnums=(0, 1), has_aux=True))
        self._predict: Any = jax.jit(self._prediction)

    def inputs(self, pulled: Pulled) -> Inputs:
        """The values that were pulled, with a vector for each id."""
        return Inputs(
            # Copied, as the next pull may give the same arrays, and a step may run in their memory.
            np.array(pulled.trainable),
            np.array(pulled.state),
            gathered(pulled.rows, pulled.ids, self._ids.positions),
            pulled.ids,
        )

    # ------------------------------------------------------------ training

    def train(
        self, batch: Batch, inputs: Inputs, change: Float32 | None
    ) -> tuple[float, Float32, Float32, list[Float32]]:
        """Run the step on a batch; compiled at the first call of each size.

        change: to be added to the statistics that were pulled; None for none. Raises UserError if
        the step looks up ids that cannot be known before it.
        """
        state = inputs.state if change is None else inputs.state + change
        if True not in self._read:
            with attributing(None):  # no record is at fault where tracing fails
                self._check_step()
        self._check_integers(batch)
        self._note_size(batch.size)
        given = (in_step(each) for each in (batch.features, batch.labels, batch.weights))
        (loss, (moved, kept, self._predicted)), (dense, vectors) = self._train(
            inputs.trainable, inputs.vectors, state, self._kept, *given
        )
        self._kept = kept
        gradients = [np.asarray(each) for each in vectors]
        flat = np.asarray(dense)
        tables = summed(gradients, inputs.ids, self._ids.positions, self._dims)
        if self._clip_at_once:
            flat, tables = self.clip(flat, tables)
        return float(loss), flat, np.asarray(moved) - state, tables

    def predictions(self) -> tuple[Any, Any]:
        """See the Protocol."""
        return _told(*self._predicted)

    def clip(self, dense: Float32, tables: Sequence[Float32]) -> tuple[Float32, list[Float32]]:
        """Clip the gradient of the flat trainable vector, and those of all tables."""
        return clipped_flat(self._optimizers, self._trainable.manifest, dense, tables)

    def _training(
        self,
        trainable: Any,
        vectors: Sequence[Any],
        state: Any,
        kept: Sequence[Any],
        features: Any,
        labels: Any,
        weights: Any,
    ) -> tuple[Any, tuple[Any, list[Any], Any]]:
        """The loss; the new state, new values of what is kept, and what `predictions` tells of."""
        predictions, others, losses = self._called(
            trainable, vectors, state, kept, features, training=True
        )
        loss = self._loss(labels, predictions, weights) + losses
        moved = [each for each, its in zip(others, self._is_state, strict=True) if its]
        own = [each for each, its in zip(others, self._is_state, strict=True) if not its]
        predicted = (predictions, losses, masks_of(predictions)) if self._keeps else ()
        return loss, (self._state.pack(moved), own, predicted)

    def _called(
        self,
        trainable: Any,
        vectors: Sequence[Any],
        state: Any,
        kept: Sequence[Any],
        features: Any,
        *,
        training: bool,
    ) -> tuple[Any, list[Any], Any]:
        """The outputs of the model, its variables without a gradient, and its layers' losses."""
        moving, own = iter(self._state.unpack(state)), iter(kept)
        others = [next(moving) if its else next(own) for its in self._is_state]
        with lookup_with(Vectors(self._refusals, vectors, self._ids.calls)):
            values = self._trainable.unpack(trainable)
            outputs, scope = called(self._model, values, others, features, training=training)
        with scope:
            losses = list(self._model.losses)
        after = [scope.get_current_value(e) for e in self._model.non_trainable_variables]
        of_layers = sum((jnp.asarray(each, jnp.float32) for each in losses), jnp.float32(0))
        return outputs, after, of_layers

    # ------------------------------------------------------------ prediction

    def predict(self, features: Any, inputs: Inputs) -> tuple[Any, Any]:
        """Return the model's outputs for features, and the losses of its layers.

        The outputs are NumPy's arrays, with the masks that Keras noted on them. The losses are one
        float32 number, which a model's regularizers add up to.
        """
        if False not in self._read:
            with attributing(None):
                closed = jax.make_jaxpr(self._prediction)(*self._samples()[:5])
                self._read[False] = self._features_read(closed)
        self._check_features_read(features, training=False)
        return _told(
            *self._predict(
                inputs.trainable, inputs.vectors, inputs.state, self._kept, in_step(features)
            )
        )

    def _prediction(
        self, trainable: Any, vectors: Sequence[Any], state: Any, kept: Any, features: Any
    ) -> tuple[Any, Any, list[Any]]:
        outputs, _, of_layers = self._called(
            trainable, vectors, state, kept, features, training=False
        )
        # Attributes of arrays do not come out of a traced function.
        return outputs, of_layers, masks_of(outputs)

    def trace_prediction(self, features_spec: Any) -> None:
        """Trace `predict` for batches of another spec. Raises what the model raises."""
        features = in_step(sample(features_spec, RECORDS))
        jax.eval_shape(self._prediction, *self._samples()[:4], features)

    def predictions_spec(self) -> Any:
        """The spec of the outputs that `predict` gives."""
        outputs, *_ = jax.eval_shape(self._prediction, *self._samples()[:5])
        return mapped(
            lambda each: ArraySpec((None, *each.shape[1:]), np.dtype(each.dtype)), outputs
        )

    # ------------------------------------------------------------ checks

    def _samples(self) -> tuple[Any, ...]:
        """The arguments of `_training`, of a batch of any size; the first five of `_prediction`."""
        features, labels, weights = (
            None if spec is None else sample(spec, RECORDS) for spec in self._specs
        )
        ids = zip(self._ids.positions, self._ids.numbers(features), strict=False)
        vectors = [np.zeros((each.size, self._dims[table]), np.float32) for table, each in ids]
        values = (np.zeros(each.size, np.float32) for each in (self._trainable, self._state))
        trainable, state = values
        return trainable, vectors, state, self._kept, *map(in_step, (features, labels, weights))

    def _check_step(self) -> None:
        """Trace the step. Raises UserError for ids that cannot be known, and if nothing learns."""
        differentiated = jax.value_and_grad(self._training, argnums=(0, 1), has_aux=True)
        closed = jax.make_jaxpr(differentiated)(*self._samples())
        self._ids.check_training()
        # Outputs: the loss, the state, what is kept, the gradient of each value and vector.
        gradients = bool(self._trainable.size) + len(self._ids.calls)
        count = len(closed.jaxpr.outvars)
        of_gradients = [place >= count - 1 - len(self._ids.calls) for place in range(count)]
        program = Program.of(closed, of_gradients)
        if gradients and not any(program.used):
            raise UserError(
                "the loss has no gradient, so nothing would be learned: compute it from the "
                "predictions by operations that have one, without argmax, rounding or a cast to "
                "integers"
            )
        self._read[True] = self._features_read(closed)

    def _features_read(self, closed: Any) -> list[int]:
        """The features of 64-bit integers whose values a step reads, by their positions.

        closed: the jaxpr of a step with the arguments of `_samples`.
        """
        program = Program.of(closed, [True] * len(closed.jaxpr.outvars))
        before = len(jax.tree.leaves(self._samples()[:4]))
        return [
            place
            for place, spec in enumerate(leaves(self._features_spec))
            if spec.dtype == np.int64
            and program.used[before + place]
            and program.reads(sum(program.used[: before + place]))
        ]

    def _check_integers(self, batch: Batch) -> None:
        """Raises UserError for integers that a step reads and that are no 32-bit ones."""
        self._check_features_read(batch.features, training=True)
        feed = self._built.module.describe(self._built.module.feed_name)
        for what, nested in (("labels", batch.labels), ("weights", batch.weights)):
            for each in leaves(nested):
                if each is not None and (value := beyond(each)) is not None:
                    raise UserError(f"{feed} gives {value} among the {what}, {_TOO_LARGE}")

    def _check_features_read(self, features: Any, *, training: bool) -> None:
        places = self._read[training]
        if not places:
            return
        feed = self._built.module.describe(self._built.module.feed_name)
        given = leaves(features)
        for place in places:
            if (value := beyond(given[place])) is not None:
                raise UserError(
                    f"{feed} gives {value} as feature {self._names[place]!r}, {_TOO_LARGE}. "
                    "Embedding layers of the servers take any int64"
                )

    def _note_size(self, size: int) -> None:
        if size in self._sizes:
            return
        self._sizes.add(size)
        if len(self._sizes) == SIZES + 1:
            logger.warning(
                "the training step is compiled for each size of a batch, so far for %s: take a "
                "--batch-size of which the records of each file are a multiple, or larger files",
                ", ".join(map(str, sorted(self._sizes))),
            )


def _told(outputs: Any, of_layers: Any, masks: list[Any]) -> tuple[Any, Any]:
    """Outputs of a compiled function as NumPy's arrays with their masks, and losses of layers."""
    outputs = mapped(np.asarray, outputs)
    note_masks(outputs, [None if each is None else np.asarray(each) for each in masks])
    return outputs, np.asarray(of_layers)


_TOO_LARGE = (
    "and the model computes with it: in a step of JAX integers have 32 bits, up to 2147483647. Map "
    "it to smaller numbers or to floats in feed_batch"
)
