"""Embedding layers that look up one table: whether they can, and ids that no table can have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.config.table_options import OPTIONS
from shoal.worker.engines import backend_of_keras


def sharing_refused(first: Any, second: Any) -> str | None:
    """The reason why two embedding layers of one table cannot share it; None if they can."""
    if first is second:
        return None
    name = first.table
    if not (first.shares_table and second.shares_table):
        if any(getattr(each, "of_keras_rs", None) is not None for each in (first, second)):
            return (
                f"two tables are named {name!r}: each TableConfig of keras_rs is one; "
                "give them different names, or one TableConfig to all features of one layer that "
                "share the table"
            )
        return (
            f"two embedding layers are named {name!r}: a name is a table; give them different "
            f"names, call one layer twice, or let them share it with table={name!r} in both"
        )
    for what in ("output_dim", "embeddings_initializer", "initial", "optimizer", "dtype"):
        ours, theirs = (_setting(each, what) for each in (first, second))
        if ours != theirs:
            return f"two embedding layers share table {name!r}, but differ in {what}"
    for what in OPTIONS:
        if getattr(first, what, None) != getattr(second, what, None):
            return f"two embedding layers share table {name!r}, but differ in {what}"
    return None


def _setting(layer: Any, what: str) -> Any:
    """An argument of a layer, as its configuration has it; its dtype is that of its variables."""
    if what == "dtype":
        return layer.variable_dtype
    with backend_of_keras().eagerly():  # in a trace, an optimizer cannot tell its rate
        value = layer.get_config()[what]
    if what == "optimizer" and value is not None:
        # Keras numbers the names of optimizers that nobody named.
        value = value | {"config": {k: v for k, v in value["config"].items() if k != "name"}}
    return value


def wrapped(layer: Any, ids: npt.NDArray[np.int64]) -> str | None:
    """Which of the ids, which were uint64, does not fit int64, in words; None if all do."""
    if not ids.size or ids.min() >= 0:
        return None
    wrong = ids[ids < 0].view(np.uint64)[0]
    return (
        f"embedding {layer.name!r} was given the id {wrong}: ids are int64, up to "
        f"{np.iinfo(np.int64).max}; map larger ones in feed"
    )
