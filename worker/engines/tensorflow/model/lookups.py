"""From embedding layers to ids, and from pulled rows back to embedding layers.

The model is traced twice. Under `RecordLookup` each embedding call only notes its
ids, so that the traced function returns the ids and TensorFlow prunes the rest.
Under `RowsLookup` each call gathers from rows that were pulled for those ids. Calls
are matched by their order, which a trace of the same model repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from shoal.worker.model.embeddings.integers import no_integers
from shoal.worker.model.refusals import Refusals


def integer_ids(refusals: Refusals, layer: Any, ids: Any) -> tf.Tensor:
    """The ids as an int64 tensor. Raises UserError if they are no integers."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        refusals.refuse(no_integers(layer, ids.dtype.name, "feed"))
    return tf.cast(ids, tf.int64)


@dataclass
class RecordLookup:
    """Notes which layer was called with which ids; the rows it gives are zeros.

    unsigned: of each call, whether its ids were uint64.
    """

    refusals: Refusals
    layers: list[Any] = field(default_factory=list)
    ids: list[tf.Tensor] = field(default_factory=list)
    rows: list[tf.Tensor] = field(default_factory=list)
    unsigned: list[bool] = field(default_factory=list)

    def __call__(self, layer: Any, ids: Any) -> tf.Tensor:
        """Note a call; zeros of the rows' shape."""
        self.unsigned.append(tf.convert_to_tensor(ids).dtype == tf.uint64)
        ids = integer_ids(self.refusals, layer, ids)
        self.layers.append(layer)
        self.ids.append(tf.reshape(ids, [-1]))
        zeros = tf.zeros(tf.concat([tf.shape(ids), [layer.output_dim]], 0), layer.compute_dtype)
        # The identity is a tensor of this call alone, by which what is computed from it is found.
        self.rows.append(tf.identity(zeros))
        return self.rows[-1]


@dataclass
class RowsLookup:
    """Gives each call its rows.

    tables: name -> position in `rows`.
    rows: one a table, float32 [unique, dim].
    inverses: one a call, int32 [ids], positions in the table's rows.
    layers: the name of the table of each call.
    """

    refusals: Refusals
    tables: dict[str, int]
    rows: Sequence[tf.Tensor]
    inverses: Sequence[tf.Tensor]
    layers: Sequence[str]
    ids: list[tf.Tensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _calls: int = 0

    def __call__(self, layer: Any, ids: Any) -> tf.Tensor:
        """The rows of the next call in order. Raises UserError if it is another layer's."""
        call = self._calls
        self._calls += 1
        if call >= len(self.layers) or self.layers[call] != layer.table:
            self.refusals.refuse(
                f"embedding {layer.name!r} was called in another order in the training step "
                "than when the ids were traced: a model must call its embedding layers alike "
                "whether training or not"
            )
        ids = integer_ids(self.refusals, layer, ids)
        self.ids.append(ids)
        self.names.append(layer.name)
        rows = tf.gather(self.rows[self.tables[layer.table]], self.inverses[call])
        shaped = tf.reshape(rows, tf.concat([tf.shape(ids), [layer.output_dim]], 0))
        shaped.set_shape([*ids.shape, layer.output_dim])
        if not layer.trainable:
            shaped = tf.stop_gradient(shaped)
        return tf.cast(shaped, layer.compute_dtype)
