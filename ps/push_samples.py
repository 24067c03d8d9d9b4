"""What one push a second tells: the norms of gradients and rows, and which ids are hot.

Only servers that serve metrics look. Where a look takes long they look less often, so that it never
costs more than SHARE of their time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.proto.errors import WireError
from shoal.ps.service import ParameterServer
from shoal.ps.unpack import unpack

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""Between two looks, at least."""

SHARE = 0.005
"""Of all time, at most, for looking: many tables take long, and are looked at less often."""

MOST_ROWS = 1024
"""Of a table that are looked at in one push."""

BOUNDS = tuple(10.0**exponent for exponent in range(-6, 5))
"""Of norms. Rows of embeddings have norms about 1, their gradients 0.001 and less."""

COUNTERS = 1024
"""Of ids, in each table: an id is found hot if more than one of so many ids looked at is this."""

Float = npt.NDArray[np.floating[Any]]
Int64 = npt.NDArray[np.int64]


class HotIds:
    """Counts the most frequent of very many ids in little memory, as Misra and Gries do.

    With k counters, a count is too low by at most 1/k of all that were added, and never too high.
    """

    def __init__(self, counters: int = COUNTERS) -> None:
        self._most = counters
        self._ids: Int64 = np.empty(0, np.int64)
        self._counts: Int64 = np.empty(0, np.int64)

    def add(self, ids: Int64) -> None:
        """Count ids, int64 [n]."""
        found, places = np.unique(np.concatenate([self._ids, ids]), return_inverse=True)
        ones = np.ones(len(ids), np.int64)
        counts = np.zeros(len(found), np.int64)
        np.add.at(counts, places.ravel(), np.concatenate([self._counts, ones]))
        if len(found) > self._most:
            # What the first without a counter has is taken from all.
            counts -= np.partition(counts, -self._most - 1)[-self._most - 1]
            kept = counts > 0
            found, counts = found[kept], counts[kept]
        self._ids, self._counts = found, counts

    def top(self, number: int) -> list[tuple[int, int]]:
        """(id, count) of the most frequent ids, the most frequent one first."""
        order = np.lexsort((self._ids, -self._counts))[:number]
        return [(int(self._ids[i]), int(self._counts[i])) for i in order]


class _Norms:
    """A histogram of norms."""

    def __init__(self) -> None:
        self.counts: Int64 = np.zeros(len(BOUNDS) + 1, np.int64)
        self.sum = 0.0

    def add(self, rows: npt.NDArray[np.float32]) -> None:
        """rows: float32 [n, dim]. Those that are not finite do not count."""
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        norms = np.sqrt(squares[np.isfinite(squares)])
        places = np.searchsorted(BOUNDS, norms, side="left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.sum += float(norms.sum())


class _Table:
    """What was seen of a table in the pushes that were looked at."""

    def __init__(self) -> None:
        self.gradients, self.rows = _Norms(), _Norms()
        self.hot = HotIds()
        self.pushes = 0


class PushSamples(Collector):
    """Looks at pushes to `server`; told when the page is asked for."""

    def __init__(
        self,
        server: ParameterServer,
        hot_ids: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """hot_ids: so many of each table are told, which shows ids of records. clock: seconds."""
        self._server = server
        self._hot_ids = hot_ids
        self._clock = clock
        self._lock = threading.Lock()
        self._due = float("-inf")
        self._tables: dict[str, _Table] = {}

    def looked_at(self, push: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same handler of pushes; one push a second is looked at when it was taken.

        A look that fails is the last one, and the push counts as taken all the same.
        """

        def taken(frame: Any) -> Any:
            answer = push(frame)
            if self._clock() >= self._due and self._lock.acquire(blocking=False):
                try:
                    began = self._clock()
                    self.look(frame)
                    ended = self._clock()
                    self._due = ended + max(PAUSE_SECONDS, (ended - began) / SHARE)
                except Exception:
                    self._due = float("inf")
                    logger.exception("the metrics look at no push any more")
                finally:
                    self._lock.release()
            return answer

        return taken

    def look(self, frame: Any) -> None:
        """Take up a push that was applied."""
        try:
            pushed = unpack(frame).gradients.tables
            model = self._server.model
        except WireError:  # the server ends
            return
        for position, (ids, gradients) in pushed.items():
            if not len(ids):
                continue
            spec = model.spec.tables[position]
            table = self._tables.setdefault(spec.name, _Table())
            ids, gradients = ids[:MOST_ROWS], gradients[:MOST_ROWS]
            table.pushes += 1
            table.gradients.add(gradients.astype(np.float32, copy=False))
            rows = np.empty((len(ids), spec.dim), np.float32)
            model.lookup(position, np.ascontiguousarray(ids), rows, training=True)
            table.rows.add(rows)
            if self._hot_ids:
                table.hot.add(ids)

    def collect(self) -> Iterator[Metric]:
        """The norms of each table, and its hot ids if they are wanted."""
        gradients = HistogramMetricFamily(
            "shoal_gradient_row_norm",
            "L2 norm of a row's gradient, of the rows in one push a second.",
            labels=["table"],
        )
        rows = HistogramMetricFamily(
            "shoal_row_norm",
            "L2 norm of a row, after a push, of the rows in one push a second.",
            labels=["table"],
        )
        hot = GaugeMetricFamily(
            "shoal_hot_id_share",
            "Share of the pushes looked at that have this id, at least.",
            labels=["table", "id"],
        )
        with self._lock:
            for name, table in self._tables.items():
                for family, norms in ((gradients, table.gradients), (rows, table.rows)):
                    family.add_metric([name], _buckets(norms), norms.sum)
                for number, count in table.hot.top(self._hot_ids):
                    hot.add_metric([name, str(number)], count / table.pushes)
        yield gradients
        yield rows
        if self._hot_ids:
            yield hot


def _buckets(norms: _Norms) -> list[tuple[str, float]]:
    bounds = (*map(str, BOUNDS), "+Inf")
    return list(zip(bounds, map(float, np.cumsum(norms.counts)), strict=True))
