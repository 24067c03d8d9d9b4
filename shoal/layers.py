"""Keras layers whose weights live on the parameter servers.

`Embedding` looks rows up through the `Lookup` in force: the worker puts one in
place around each trace of the model (worker/lookups.py). The layer itself holds no
weights and knows no servers.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import keras


class Lookup(Protocol):
    """What an embedding layer asks for its rows."""

    def __call__(self, layer: Embedding, ids: Any) -> Any:
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


@keras.saving.register_keras_serializable(package="shoal")
class Embedding(keras.layers.Layer):
    """An embedding table of any size, held by the parameter servers.

    Takes any int64 ids, negative ones included: there is no vocabulary to declare
    and no two ids share a row. A row exists from its first update on; before, it
    has the initial value that the initializer, the job's seed and the id determine.

    output_dim: length of a row.
    embeddings_initializer: a Keras initializer or its name: zeros, ones, constant,
        random_uniform, random_normal, truncated_normal or a variance scaling one
        (glorot_uniform and so on; fan-in 1 and fan-out output_dim, as a table that
        grows has no other).

    Input: integer ids of any shape. Output: float32, the shape of the ids with
    output_dim appended.
    """

    def __init__(
        self, output_dim: int, embeddings_initializer: Any = "uniform", **kwargs: Any
    ) -> None:
        if isinstance(output_dim, bool) or not isinstance(output_dim, int) or output_dim < 1:
            raise ValueError(f"output_dim must be a positive integer, not {output_dim!r}")
        super().__init__(**kwargs)
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        # The ids keep their integers: Keras would cast inputs to the float policy.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.built = True

    def call(self, ids: Any) -> Any:
        """Rows of `ids`. Raises RuntimeError outside a shoal job."""
        lookup = _lookup.get()
        if lookup is None:
            raise RuntimeError(
                f"the rows of shoal.layers.Embedding {self.name!r} are on parameter servers: "
                "run the model with shoal train, evaluate or predict, or load its export"
            )
        return lookup(self, ids)

    def compute_output_spec(self, ids: Any) -> keras.KerasTensor:
        """Shape and dtype of the rows."""
        return keras.KerasTensor((*ids.shape, self.output_dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }
