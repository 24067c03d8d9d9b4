"""Histograms of the L2 norms of rows: what servers measure and the master draws.

Of embeddings these are about 1, of their gradients 0.001 and less, and in one table they are close
to one another. So the buckets are ten to a decade, unlike those of `Distribution`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.proto import shoal_pb2 as pb

BY_DECADE = 10
"""Buckets."""

BOUNDS = tuple(10.0 ** (step / BY_DECADE) for step in range(-6 * BY_DECADE, 4 * BY_DECADE + 1))
"""Bucket i has the norms above bound i-1, up to bound i; one more bucket has those above all."""


class Norms:
    """A histogram of norms. counts: int64 [len(BOUNDS) + 1]. Not guarded against threads."""

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(len(BOUNDS) + 1, np.int64)
        self.sum = self.maximum = 0.0

    def add(self, rows: npt.NDArray[np.floating[Any]]) -> None:
        """rows: float [n, dim]. Those that are not finite do not count."""
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        norms = np.sqrt(squares[np.isfinite(squares)])
        places = np.searchsorted(BOUNDS, norms, side="left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.sum += float(norms.sum())
        self.maximum = max(self.maximum, float(norms.max(initial=0.0)))

    def to_message(self) -> pb.Distribution:
        """The same for the wire, without the empty buckets at the end."""
        return pb.Distribution(
            buckets=np.trim_zeros(self.counts, "b").tolist(),
            count=int(self.counts.sum()),
            sum=self.sum,
            maximum=self.maximum,
        )
