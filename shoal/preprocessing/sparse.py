"""Lists of ids as sparse tensors, and one vector for each list.

How the rows of a list become one is shoal/bags's.
"""

from __future__ import annotations

from typing import Any

import keras

from shoal.bags import COMBINERS, look_up, refuse_form
from shoal.errors import UserError
from shoal.preprocessing.base import as_tensor, serializable, tf
from shoal.preprocessing.text import ListLayer


@serializable
class ToSparse(ListLayer):
    """Lists as a sparse tensor: padded ones, ragged ones, or those that strings spell.

    separator, padding: see ListLayer; padding is needed for dense input without a separator.

    Input: as of ToRagged, or a ragged tensor. Output: a tf.SparseTensor of the same shape,
    with one more axis where strings are split. Elements of padded lists keep their places.
    """

    def call(self, inputs: Any) -> Any:
        """Split, then drop."""
        values = as_tensor(inputs)
        if self.separator is None and not isinstance(values, tf.RaggedTensor):
            return self._in_place(values)
        values = self.lists(values)
        if isinstance(values, tf.RaggedTensor):
            return values.to_sparse()
        # A single string has become a vector.
        places = tf.range(tf.size(values, tf.int64))[:, None]
        return tf.SparseTensor(places, values, tf.shape(values, tf.int64))

    def of_arrays(self, inputs: Any) -> Any:  # noqa: ARG002
        """Raises UserError: NumPy has no sparse arrays."""
        raise UserError(
            f"{self.name}: ToSparse gives tensors of tensors, with the engine tensorflow alone: "
            "take ToRagged(...)(column).padded(n), and mask_zero=True in the model"
        )

    def _in_place(self, values: Any) -> Any:
        """The elements of a dense tensor that are no padding, where they stand."""
        if self.padding is None:
            raise ValueError(f"{self.name}: give padding, to drop it from dense lists")
        if values.shape.rank == 0:
            raise ValueError(f"{self.name}: without a separator the input needs an axis")
        places = tf.where(self.no_padding(values))
        return tf.SparseTensor(places, tf.gather_nd(values, places), tf.shape(values, tf.int64))

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Shape and dtype of the lists."""
        split = self.separator is not None
        shape = (*inputs.shape, None) if split else inputs.shape
        return keras.KerasTensor(shape, dtype=inputs.dtype, sparse=True)


@serializable
class SparseEmbedding(keras.layers.Embedding):
    """A keras.layers.Embedding whose rows are combined to one for each list of ids.

    input_dim: ids are from 0 to input_dim - 1.
    combiner: "sum", "mean" (by the sum of weights) or "sqrtn" (by the root of the sum of
        their squares).
    mask_zero: id 0 is padding, and counts for nothing.

    Input: ids, sparse of [batch, ids], ragged or dense, of which the last axis is the list;
    and, if given, weights, a number for each id, of the same form. An empty list gives
    zeros. Output: float32, output_dim in place of the last axis.

    In plain Keras it has a weight like any other layer. In a job it is one too up to
    --embedding-threshold bytes, and above that a table of the servers. For ids without a
    vocabulary take shoal.layers.Embedding, which combines in the same way.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        combiner: str = "mean",
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        if combiner not in COMBINERS:
            raise ValueError(f"combiner must be one of {', '.join(COMBINERS)}, not {combiner!r}")
        super().__init__(input_dim, output_dim, embeddings_initializer, **kwargs)
        # Ours: Keras's own would make a mask of the ids, which end in this layer.
        self.mask_zero = mask_zero
        self.combiner = combiner
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def build(self, *_: Any) -> None:
        """Make the weight, of whatever form the inputs are."""
        super().build()

    def call(self, ids: Any, weights: Any = None) -> Any:
        """One row for each list."""
        for each in (ids, weights):
            refuse_form(each, f"embedding {self.name!r}")
        dtype = keras.backend.standardize_dtype(ids.dtype)
        if "int" not in dtype:
            raise ValueError(
                f"{self.name}: ids are integers, not {dtype}; make them of strings by "
                "Hashing or IndexLookup"
            )
        lookup = super().call
        return look_up(lookup, ids, weights, self.combiner, mask_zero=self.mask_zero)

    def compute_mask(self, *_: Any, **__: Any) -> None:
        """None: no list is left to be masked."""

    def compute_output_spec(self, ids: Any, weights: Any = None) -> keras.KerasTensor:
        """Shape and dtype of the rows."""
        for each in (ids, weights):
            refuse_form(each, f"embedding {self.name!r}")
        lists = ids.shape[:-1]
        ragged = {"ragged": True} if getattr(ids, "ragged", False) and len(lists) > 1 else {}
        return keras.KerasTensor((*lists, self.output_dim), dtype=self.compute_dtype, **ragged)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "combiner": self.combiner}
