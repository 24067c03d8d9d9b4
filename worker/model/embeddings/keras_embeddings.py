"""Plain keras.layers.Embedding as a table of the servers, with no edit of the model.

Owns which layers become tables and what they give instead of their weight; with which rows
they begin is initial_rows.py's. Keras has no
hook before a layer makes its weight, which for a large table must not happen, so methods
of the class are replaced here once; they act as before on every other layer.
"""

from __future__ import annotations

import contextvars
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.bags import integers, look_up
from shoal.base.modules.tracebacks import line_now
from shoal.errors import UserError
from shoal.layers import rows
from shoal.worker.code.keras_internals import unread
from shoal.worker.model.embeddings.given_weights import StandIn, takes_weights
from shoal.worker.model.embeddings.keras_rs_tables import Table, sparse_rows, table_in_build
from shoal.worker.model.embeddings.row_dtypes import holds_rows

_threshold: contextvars.ContextVar[float] = contextvars.ContextVar("threshold", default=math.inf)

_noted: contextvars.ContextVar[list[tuple[Any, Any]] | None] = contextvars.ContextVar(
    "noted", default=None
)

BYTES_PER_VALUE = 4


@contextmanager
def tables_above(threshold: float) -> Iterator[None]:
    """Let keras.layers.Embedding layers built in the body become tables.

    threshold: bytes of float32 values above which a layer does. The tables of a
    DistributedEmbedding of keras-rs do at any size.
    """
    token = _threshold.set(threshold)
    try:
        yield
    finally:
        _threshold.reset(token)


@contextmanager
def noting_others() -> Iterator[list[tuple[Any, Any]]]:
    """Note the Embedding layers called in the body that are no tables, with their ids."""
    noted: list[tuple[Any, Any]] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def is_served(layer: Any) -> bool:
    """True if a layer is a plain Embedding that became a table."""
    return isinstance(layer, keras.layers.Embedding) and hasattr(layer, "served")


def vocabulary(layer: Any) -> int:
    """The number of ids of an embedding layer's table, from 0 on; 0 for any int64 id."""
    if not is_served(layer) or (layer.of_keras_rs is not None and layer.of_keras_rs.any_id):
        return 0
    return int(layer.input_dim)


def plain_copy(layer: Any, values: npt.NDArray[np.float32]) -> Any:
    """The layer as Keras's own again, with its weight; not built if `values` has no row."""
    copy = type(layer).from_config(layer.get_config())
    if values.shape[0]:
        copy.build()
        copy.embeddings.assign(values)
    return copy


def out_of_range(layer: Any, ids: npt.NDArray[np.int64]) -> str | None:
    """The error message for `ids` that are not all in the layer's table; None if they are.

    layer: of any embedding, also one that is no table.
    """
    count = vocabulary(layer) if is_served(layer) else getattr(layer, "input_dim", 0)
    if not count or not ids.size or (ids.min() >= 0 and ids.max() < count):
        return None
    wrong = ids[(ids < 0) | (ids >= count)][0]
    what, size, other = "embedding", "input_dim", "shoal.layers.Embedding"
    if is_served(layer) and layer.of_keras_rs is not None:
        what, size = "table", "vocabulary_size"
        other = "shoal.layers.DistributedEmbedding with vocabulary_size=None"
    return outside_message(what, layer.name, int(wrong), count, size, other)


def outside_message(
    what: str,
    name: str,
    wrong: int,
    count: int,
    size: str = "input_dim",
    other: str = "shoal.layers.Embedding",
) -> str:
    """That a layer or table `name` of ids from 0 to count - 1 was given the id `wrong`.

    size: the argument that sets count. other: a layer that takes any id.
    """
    return (
        f"{what} {name!r} was given the id {wrong}: its ids go from 0 to {count - 1} "
        f"({size}={count}); map the ids in feed, or use {other}, which takes any int64"
    )


def _becomes_table(layer: Any, of_keras_rs: Table | None) -> bool:
    # A quantized or LoRA layer keeps its weights in a form of its own.
    if layer.quantization_mode is not None or layer.lora_rank or not holds_rows(layer):
        return False
    if of_keras_rs is not None:
        return True
    return bool(layer.input_dim * layer.output_dim * BYTES_PER_VALUE > _threshold.get())


def _check(layer: Any) -> None:
    """Raises UserError for what needs all rows at each step."""
    for what, why, instead in (
        (
            "regularizer",
            "adds every row to the loss at every step",
            "take activity_regularizer, which counts the rows that a batch looks up",
        ),
        (
            "constraint",
            "is applied to every row at every step",
            "constrain the looked-up rows in the model",
        ),
    ):
        given = getattr(layer, f"embeddings_{what}")
        if given is not None:
            raise UserError(
                f"embedding {layer.name!r} ({layer.input_dim} x {layer.output_dim}) is above "
                f"--embedding-threshold, so the servers hold it, but its embeddings_{what} "
                f"({type(given).__name__}) {why}, which they do not do: {instead}, or give "
                "--embedding-threshold "
                f"{layer.input_dim * layer.output_dim * BYTES_PER_VALUE} to keep the layer in "
                "the workers"
            )


def _used(layer: Any) -> UserError:
    """The error about a model that uses the weight of a served layer itself."""
    if layer.of_keras_rs is not None:
        return UserError(
            f"the servers hold table {layer.name!r} of a DistributedEmbedding, so neither "
            "get_embedding_tables() nor its weight is to be had in a job: call it on the "
            "exported model.keras"
        )
    size = layer.input_dim * layer.output_dim * BYTES_PER_VALUE
    where = line_now()
    return UserError(
        f"embedding {layer.name!r} is above --embedding-threshold, so the servers hold it, "
        f"but the model uses its weight itself (layer.embeddings{where and f', {where}'}): call "
        f"the layer with the ids whose rows it needs, or give --embedding-threshold {size} to keep "
        "the layer in the workers"
    )


def _install() -> None:
    kind = keras.layers.Embedding
    build, call = kind.build, kind.call
    load, embeddings, weights = kind.load_own_variables, kind.embeddings, kind.weights

    @functools.wraps(build)
    def _build(self: Any, input_shape: Any = None) -> None:
        in_job = _threshold.get() < math.inf
        of_keras_rs = table_in_build(self) if in_job and not self.built else None
        if self.built or not _becomes_table(self, of_keras_rs):
            build(self, input_shape)
            return
        _check(self)
        # A dict, which Keras would track and lock, hides its content from it as an object.
        object.__setattr__(self, "served", {"rows": None})
        object.__setattr__(self, "table", self.name)
        object.__setattr__(self, "shares_table", False)
        object.__setattr__(self, "of_keras_rs", of_keras_rs)
        if of_keras_rs is not None:
            object.__setattr__(self, "optimizer", of_keras_rs.config.optimizer)
        self.built = True

    @functools.wraps(call)
    def _call(self: Any, inputs: Any) -> Any:
        if not is_served(self):
            if (noted := _noted.get()) is not None:
                noted.append((self, inputs))
            return call(self, inputs)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if dtype not in ("int32", "int64") and vocabulary(self):
            inputs = keras.ops.cast(inputs, "int32")  # as the layer itself does

        def rows_of(ids: Any) -> Any:
            return rows(self, integers(ids))

        if (found := sparse_rows(self, inputs, rows_of)) is not None:
            return found
        return look_up(rows_of, inputs, None, None, mask_zero=False)

    @functools.wraps(load)
    def _load(self: Any, store: Any) -> None:
        if not is_served(self):
            load(self, store)
            return
        wanted, there = 1 + len(weights.fget(self)), len(store.keys())
        if wanted != there:
            raise ValueError(f"embedding {self.name!r} has {wanted} weights, and the file {there}")
        StandIn(self, _used(self)).assign(unread(store, "0"))

    def _embeddings(self: Any) -> Any:
        if not is_served(self):
            return embeddings.fget(self)
        if takes_weights():
            return StandIn(self, _used(self))
        raise _used(self)

    def _weights(self: Any) -> Any:
        others = weights.fget(self)
        if is_served(self) and takes_weights():
            return [StandIn(self, _used(self)), *others]
        return others

    kind.build, kind.call, kind.load_own_variables = _build, _call, _load
    kind.embeddings, kind.weights = property(_embeddings), property(_weights)


_install()
