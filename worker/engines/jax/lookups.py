"""From embedding layers to ids, and from vectors back to embedding layers.

The model is traced twice. Under `Recording` each embedding call notes its ids, from which the ids
of a batch are found (ids.py). Under `Vectors` each call gives the vectors that were gathered for
those ids, one an id. Calls are matched by their order, which a trace of the same model repeats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import keras

from shoal.worker.code.keras_internals import taken_features
from shoal.worker.model.embeddings.integers import no_integers
from shoal.worker.model.refusals import Refusals


def integer_ids(refusals: Refusals, layer: Any, ids: Any) -> Any:
    """The ids as an array of JAX. Raises UserError if they are no integers."""
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        refusals.refuse(no_integers(layer, ids.dtype.name, "feed_batch"))
    return ids


@dataclass
class Recording:
    """Notes which layer was called with which ids; the vectors it gives are zeros.

    witnesses: a number of each table, of which its vectors are made, by which what is computed
    from them is found; none: of constants. others: embedding layers that are no tables.
    """

    refusals: Refusals
    witnesses: Mapping[str, Any] = field(default_factory=dict)
    layers: list[Any] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    def __call__(self, layer: Any, ids: Any) -> Any:
        """Note a call; zeros of the vectors' shape."""
        ids = integer_ids(self.refusals, layer, ids)
        self.layers.append(layer)
        self.ids.append(ids.reshape(-1).astype("int64"))
        witness = self.witnesses.get(layer.table, 0.0)
        shape = (*ids.shape, layer.output_dim)
        return jnp.broadcast_to(jnp.asarray(witness, layer.compute_dtype), shape)


@dataclass
class Vectors:
    """Gives each call its vectors.

    vectors: one a call, float32 [ids, dim]. calls: the name of the table of each call.
    """

    refusals: Refusals
    vectors: Sequence[Any]
    calls: Sequence[str]
    _called: int = 0

    def __call__(self, layer: Any, ids: Any) -> Any:
        """The vectors of the next call in order. Raises UserError if it is another layer's."""
        call = self._called
        self._called += 1
        ids = integer_ids(self.refusals, layer, ids)
        if (
            call >= len(self.calls)
            or self.calls[call] != layer.table
            or self.vectors[call].shape[0] != math.prod(ids.shape)
        ):
            self.refusals.refuse(
                f"embedding {layer.name!r} was called in another order in the training step "
                "than when the ids were traced: a model must call its embedding layers alike "
                "whether training or not"
            )
        shaped = self.vectors[call].reshape((*ids.shape, layer.output_dim))
        if not layer.trainable:
            shaped = jax.lax.stop_gradient(shaped)
        return shaped.astype(layer.compute_dtype)


def called(
    model: Any, trained: Sequence[Any], others: Sequence[Any], features: Any, *, training: bool
) -> tuple[Any, keras.StatelessScope]:
    """The outputs of a model with these values of its variables, and the scope of the call.

    Not by stateless_call, which passes over Keras's own call: layers would not be told whether they
    are trained, and outputs had no masks.
    """
    pairs = [
        *zip(model.trainable_variables, trained, strict=True),
        *zip(model.non_trainable_variables, others, strict=True),
    ]
    with keras.StatelessScope(state_mapping=pairs, collect_losses=True) as scope:
        return model(taken_features(model, features), training=training), scope
