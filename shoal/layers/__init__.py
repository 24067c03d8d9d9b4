"""Keras layers whose weights live on the parameter servers.

embedding                 `Embedding`, and the lookup in force that gives it rows
distributed_embedding     `DistributedEmbedding`, which needs keras-rs and is loaded when it
is first named
"""

from __future__ import annotations

from typing import Any

from shoal.errors import UserError
from shoal.layers.embedding import Embedding, Lookup, lookup_for, lookup_with, rows

__all__ = ["Embedding", "Lookup", "lookup_for", "lookup_with", "rows"]


def __getattr__(name: str) -> Any:
    """`DistributedEmbedding`. Raises UserError if keras-rs is not installed."""
    if name != "DistributedEmbedding":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import keras_rs  # noqa: F401
    except ImportError as error:
        raise UserError(
            "shoal.layers.DistributedEmbedding needs keras-rs: pip install 'shoal[keras-rs]' "
            f"({error})"
        ) from error
    from shoal.layers.distributed_embedding import DistributedEmbedding

    return DistributedEmbedding
