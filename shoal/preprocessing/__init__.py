"""Keras layers that turn columns into ids and numbers, in `feed` or in a model.

They need no job: they work in plain Keras (TensorFlow backend). All but SparseEmbedding hold
no weights, and what they compute depends on their arguments alone, never on the process, the
machine or the batch, so that training and serving agree.
"""

from shoal.preprocessing.ids import ConcatenateWithOffset, Hashing, IndexLookup
from shoal.preprocessing.numbers import Discretization, LogRound, Normalizer, RoundIdentity
from shoal.preprocessing.sparse import SparseEmbedding, ToSparse
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
]
