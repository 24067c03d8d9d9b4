"""The lookup in force: where embedding modules get their rows from while a model is called.

A worker puts one in place around each call of the model (worker/engines/torch/), an export has
modules of plain PyTorch instead. Imports no framework but PyTorch.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from shoal.native.initializers import InitializerSpec


class Table(Protocol):
    """A table as its module tells of it.

    name: the module's dotted path in the model, for messages; "" before a model is built of it.
    table: the table's name; the same as `name` unless it was given. shares_table: whether it was.
    dim: length of a row. dtype: of the rows. init: the law of first rows. vocabulary: the number
    of ids, from 0 on; 0 for any int64 id. trainable: whether rows are trained.
    """

    name: str
    table: str
    shares_table: bool
    dim: int
    dtype: torch.dtype
    init: InitializerSpec
    vocabulary: int
    trainable: bool


class Lookup(Protocol):
    """The source of rows."""

    def __call__(self, table: Table, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids of any shape: ids.shape + (dim,), in the table's dtype."""


_lookup: contextvars.ContextVar[Lookup | None] = contextvars.ContextVar("lookup", default=None)


@contextmanager
def lookup_with(lookup: Lookup) -> Iterator[None]:
    """Let embedding modules called in the body get their rows from `lookup`."""
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


def rows(table: Any, ids: torch.Tensor) -> torch.Tensor:
    """The rows of `ids` by the lookup in force. Raises RuntimeError outside a shoal job."""
    lookup = _lookup.get()
    if lookup is None:
        raise RuntimeError(
            f"the rows of embedding {table.name or type(table).__name__!r} are on parameter "
            "servers: run the model with shoal train, evaluate or predict, or load its export "
            "with shoal.torch.load(folder)"
        )
    return lookup(table, ids)
