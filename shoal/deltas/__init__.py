"""The deltas that a job publishes while it trains, so that others answer with its newest values.

    schema.py     the content of the manifests
    shares.py     the file of a server's share of a delta
    chain.py      the folder: deltas by number
    delta.py      a delta as arrays, once all of it is checked
    reading.py    the deltas of a folder in their order
    rows.py       the rows of a followed model, changed in place
    predicting.py its predictions, by TensorFlow
    live.py       a live model, loaded beside the one before
    walking.py    the way on where a delta is missing
    following.py  the thread that keeps a model new
    to_redis.py   rows in Redis
    to_versions.py  numbered SavedModels
    errors.py     why a delta cannot be read

A *delta* has the rows, removed ids and dense values that changed since the delta before; a *base*
has all of them. For any other store:

    for delta in shoal.deltas.read("gs://bucket/live", after=122):
        for table in delta.tables.values():
            ...

What is public is loaded at its first use: servers and masters need the manifests only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.deltas.delta import Delta, TableDelta
    from shoal.deltas.errors import (
        DamagedDeltaError,
        DeltaError,
        ForeignDeltaError,
        NoDeltasError,
        NotKeptError,
    )
    from shoal.deltas.following import Follower
    from shoal.deltas.reading import read

_HOMES = {
    "DamagedDeltaError": "errors",
    "Delta": "delta",
    "DeltaError": "errors",
    "Follower": "following",
    "ForeignDeltaError": "errors",
    "NoDeltasError": "errors",
    "NotKeptError": "errors",
    "TableDelta": "delta",
    "read": "reading",
}

__all__ = [
    "DamagedDeltaError",
    "Delta",
    "DeltaError",
    "Follower",
    "ForeignDeltaError",
    "NoDeltasError",
    "NotKeptError",
    "TableDelta",
    "read",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"shoal.deltas.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'shoal.deltas' has no attribute {name!r}")
