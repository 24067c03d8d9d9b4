"""`Embedding`, a Keras layer whose rows live on the parameter servers.

It looks rows up through the `Lookup` in force: the engine of the worker puts one in
place around each trace of the model (worker/engines/tensorflow/model/lookups.py). The layer
itself holds no weights and knows no servers. How ids become bags is bags/'s.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import keras

from shoal.bags import COMBINERS, ON_TENSORFLOW, integers, look_up, padded, refuse_form
from shoal.base.words import near
from shoal.config.table_options import OPTIONS, checked
from shoal.errors import UserError


class Lookup(Protocol):
    """The source of an embedding layer's rows.

    layer: has `table` (its name), `output_dim`, `compute_dtype`, `trainable` and `name`.
    """

    def __call__(self, layer: Any, ids: Any) -> Any:
        """Rows of `ids` (int64, any shape): float32, ids.shape + (output_dim,)."""


_lookup: contextvars.ContextVar[Lookup | None] = contextvars.ContextVar("lookup", default=None)


@contextmanager
def lookup_with(lookup: Lookup) -> Iterator[None]:
    """Let embedding layers called in the body get their rows from `lookup`."""
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


def lookup_for(layer: Any) -> Lookup:
    """The lookup in force. Raises RuntimeError outside a shoal job, which names the layer."""
    lookup = _lookup.get()
    if lookup is None:
        raise RuntimeError(
            f"the rows of embedding {layer.name!r} are on parameter servers: "
            "run the model with shoal train, evaluate or predict, or load its export"
        )
    return lookup


def rows(layer: Any, ids: Any) -> Any:
    """The rows of `ids` by the lookup in force. Raises RuntimeError outside a shoal job."""
    return lookup_for(layer)(layer, ids)


_INSTEAD = {
    "input_dim": "remove it: the layer takes any int64 id",
    "input_length": "remove it: the layer takes any number of ids",
    "embeddings_regularizer": "use activity_regularizer, which counts the rows that a batch looks "
    "up, or weight_decay of the optimizer",
    "embeddings_constraint": "constrain the looked-up rows, after the layer",
    "weights": "give initial a Parquet file of ids and vectors, or use a keras.layers.Embedding, "
    "which may begin with given rows and above --embedding-threshold is on the servers too",
    "lora_rank": "remove it: there is no low-rank adaptation of rows on servers",
    "lora_alpha": "remove it: there is no low-rank adaptation of rows on servers",
}
"""Arguments that layers of other libraries have -> what there is in their place."""

ROW_DTYPES = ("float32", "bfloat16", "float16")
"""Of rows on the servers."""

_OF_LAYER = ("name", "dtype", "trainable", "activity_regularizer", "autocast")
"""Arguments that every layer of Keras takes."""


def _refuse_unsupported(arguments: Mapping[str, Any]) -> None:
    """Raises UserError for an argument that `Embedding` does not have and that is set."""
    own = (
        *("output_dim", "embeddings_initializer", "combiner", "mask_zero", "table", "optimizer"),
        "initial",
        *OPTIONS,
        *_OF_LAYER,
    )
    layer = f"shoal.layers.Embedding {arguments['name']!r}" if arguments.get("name") else ""
    for name, value in arguments.items():
        if name in _OF_LAYER or (name in _INSTEAD and value is None):
            continue
        hint = near(name, own, most=1)
        instead = _INSTEAD.get(name) or f"it takes {', '.join(own)}{hint}"
        raise UserError(f"{layer or 'shoal.layers.Embedding'} takes no {name}: {instead}")


def _check_dtype(arguments: Mapping[str, Any]) -> None:
    """Raises UserError for a dtype that rows cannot have: Keras's own error names no layer."""
    dtype = arguments.get("dtype")
    try:
        variables = keras.dtype_policies.get(dtype).variable_dtype
    except (ValueError, TypeError):
        variables = dtype
    if variables not in ROW_DTYPES:
        layer = f" {arguments['name']!r}" if arguments.get("name") else ""
        raise UserError(
            f"shoal.layers.Embedding{layer} has the dtype {variables}: the servers keep rows as "
            f"{', '.join(ROW_DTYPES[:-1])} or {ROW_DTYPES[-1]}"
        )


@keras.saving.register_keras_serializable(package="shoal")
class Embedding(keras.layers.Layer):
    """An embedding table of any size, held by the parameter servers.

    Takes any int64 ids, negative ones included: there is no vocabulary to declare
    and no two ids share a row. A row exists from its first update on; before, it
    has the initial value that the initializer, the job's seed and the id determine.
    Strings are ids too: of each, a stable 63-bit hash.

    output_dim: length of a row.
    embeddings_initializer: a Keras initializer or its name: zeros, ones, constant,
        random_uniform, random_normal, truncated_normal or a variance scaling one
        (glorot_uniform and so on; fan-in 1 and fan-out output_dim, as a table that
        grows has no other).
    combiner: None, or how the rows along the last axis of the ids become one: "sum",
        "mean" (by the sum of weights) or "sqrtn" (by the root of the sum of their squares).
    mask_zero: id 0, or the empty string, is padding: it counts for nothing in a combiner;
        without one the layer gives a mask, as keras.layers.Embedding does.
    table: name of the table; the layer's own name if not given. Layers of one table share
        its rows.
    optimizer: a Keras optimizer, or its name, for the rows of the table, with a learning rate
        of its own; that of optimizer() if not given.
    dtype: as of every Keras layer, a dtype or a policy. The servers keep the rows in the dtype of
        its variables, float32 or bfloat16, and the layer gives its compute dtype. Updates of
        bfloat16 rows are rounded stochastically: up or down at random, and right on average.
    admit_after: an id gets a row when so many pushes have contained it, 1 to 2,047; the last of
        them is the row's first update. Before, it reads the table's default row, in training too.
    expire_after: a span such as "14d" or "36h": a row whose last push is so long ago, by the
        records' --event-time, is removed. If its id comes again, it begins anew.
    max_rows: the most rows of the table in the whole job. At more, or in a large table at 97% of
        them, the servers remove rows until nine tenths are left: those that were used least and
        longest ago.
    initial: a Parquet file, by a path or URL that workers see, whose columns `id` and `vector` give
        the first rows of its ids. Other ids begin by the initializer.

    Raises UserError for an argument of another library's layer, ValueError for a value that
    is none.

    Input: ids, dense or ragged, of any shape, or sparse of [batch, ids] with a combiner;
    with a combiner also weights, one number per id, of the same form. Output: float32, or the
    compute dtype of the layer's policy, the
    shape of the ids with output_dim appended, or with a combiner in place of the last axis.
    On other backends of Keras than TensorFlow ids are dense integers, which strings have become
    before the model sees them; UserError for other forms.
    """

    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str | None = None,
        mask_zero: bool = False,
        table: str | None = None,
        optimizer: Any = None,
        admit_after: int = 1,
        expire_after: str | None = None,
        max_rows: int | None = None,
        initial: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse_unsupported(kwargs)
        if isinstance(embeddings_initializer, int) and not isinstance(embeddings_initializer, bool):
            raise UserError(
                f"shoal.layers.Embedding({output_dim}, {embeddings_initializer}): the layer "
                "takes any id, so there is no number of ids to give; the first argument is "
                f"output_dim: Embedding({embeddings_initializer})"
            )
        if isinstance(output_dim, bool) or not isinstance(output_dim, int) or output_dim < 1:
            raise ValueError(f"output_dim must be a positive integer, not {output_dim!r}")
        if combiner is not None and combiner not in COMBINERS:
            raise ValueError(
                f"combiner must be None or one of {', '.join(COMBINERS)}, not {combiner!r}"
            )
        _check_dtype(kwargs)
        super().__init__(**{name: kwargs[name] for name in _OF_LAYER if name in kwargs})
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.optimizer = None if optimizer is None else keras.optimizers.get(optimizer)
        what = f"embedding {self.name!r}"
        self.admit_after = checked("admit_after", admit_after, what)
        self.expire_after = checked("expire_after", expire_after, what)
        self.max_rows = checked("max_rows", max_rows, what)
        if initial is not None and not isinstance(initial, str | os.PathLike):
            raise ValueError(f"initial must be the path or URL of a Parquet file, not {initial!r}")
        self.initial = None if initial is None else os.fspath(initial)
        self.combiner = combiner
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.table = table or self.name
        self.shares_table = table is not None
        # The ids keep their integers: Keras would cast inputs to the float policy.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.built = True

    @property
    def embeddings(self) -> NoReturn:
        """Not there: raises AttributeError, which says what is."""
        raise AttributeError(
            f"embedding {self.name!r} has no weight `embeddings` in a worker, as its rows are on "
            "the parameter servers: call the layer with the ids whose rows you need, or read all "
            "of them from the export"
        )

    def call(self, ids: Any, weights: Any = None) -> Any:
        """Rows of `ids`. Raises RuntimeError outside a shoal job."""
        for each in (ids, weights):
            refuse_form(each, f"embedding {self.name!r}")

        def rows_of(flat: Any) -> Any:
            return rows(self, integers(flat))

        return look_up(rows_of, ids, weights, self.combiner, mask_zero=self.mask_zero)

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:  # noqa: ARG002
        """The mask of ids that are no padding; None unless `mask_zero` without a combiner."""
        if not self.mask_zero or self.combiner is not None:
            return None
        if not ON_TENSORFLOW:
            return padded.present(ids)
        return keras.ops.not_equal(ids, "" if ids.dtype == "string" else 0)

    def compute_output_spec(self, ids: Any, weights: Any = None) -> keras.KerasTensor:
        """Shape and dtype of the rows."""
        for each in (ids, weights):
            refuse_form(each, f"embedding {self.name!r}")
        if self.combiner is None and getattr(ids, "sparse", False):
            raise ValueError(
                f"embedding {self.name!r}: sparse ids need a combiner: sum, mean or sqrtn"
            )
        bags = ids.shape if self.combiner is None else ids.shape[:-1]
        ragged = getattr(ids, "ragged", False) and (self.combiner is None or len(bags) > 1)
        return keras.KerasTensor(
            (*bags, self.output_dim),
            dtype=self.compute_dtype,
            **({"ragged": True} if ragged else {}),
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "combiner": self.combiner,
            "mask_zero": self.mask_zero,
            "table": self.table if self.shares_table else None,
            "optimizer": self.optimizer and keras.optimizers.serialize(self.optimizer),
            "admit_after": self.admit_after,
            "expire_after": self.expire_after,
            "max_rows": self.max_rows,
            "initial": self.initial,
        }
