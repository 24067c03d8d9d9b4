"""Layers that turn columns into ids and numbers, in `feed` or in a model.

They need no job: they work in plain Keras (TensorFlow backend), and with arrays of NumPy anywhere.
All but SparseEmbedding hold no weights, and what they compute depends on their arguments alone,
never on the process, the machine or the batch, so that training and serving agree.

They are layers of Keras, but in a program of PyTorch that has not imported Keras before: there
they take arrays alone, and Keras is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.errors import UserError
from shoal.native.strings import string_ids
from shoal.preprocessing.base import OF_KERAS
from shoal.preprocessing.ids import ConcatenateWithOffset, Hashing, IndexLookup
from shoal.preprocessing.numbers import Discretization, LogRound, Normalizer, RoundIdentity
from shoal.preprocessing.statistics import ColumnStatistics, Statistics
from shoal.preprocessing.text import ToNumber, ToRagged

__all__ = [
    "ColumnStatistics",
    "ConcatenateWithOffset",
    "Discretization",
    "Hashing",
    "IndexLookup",
    "LogRound",
    "Normalizer",
    "RoundIdentity",
    "SparseEmbedding",
    "Statistics",
    "ToNumber",
    "ToRagged",
    "ToSparse",
    "string_ids",
]

if TYPE_CHECKING or OF_KERAS:
    from shoal.preprocessing.sparse import SparseEmbedding, ToSparse


def __getattr__(name: str) -> Any:
    """The names that need Keras, where the others do without it. Raises UserError for them."""
    if name not in ("SparseEmbedding", "ToSparse"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise UserError(
        f"shoal.preprocessing.{name} is for models of Keras: import keras before "
        "shoal.preprocessing; in a model of PyTorch, take shoal.torch.EmbeddingBag"
    )
