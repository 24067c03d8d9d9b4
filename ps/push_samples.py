"""The statistics of one push a second: the norms of gradients and rows, and the hot ids.

Only servers of a job with --serve-metrics or --tensorboard-dir look. If a look takes long, they
look less often, so that it never costs more than SHARE of their time. The pages are metrics.py's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.serving import Handlers
from shoal.proto.errors import WireError
from shoal.proto.plane.direct import around
from shoal.proto.values.norms import Norms
from shoal.ps.model.unpack import unpack
from shoal.ps.service import ParameterServer

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""Between two looks, at least."""

SHARE = 0.005
"""Of all time, at most, for looking: many tables take long, and are looked at less often."""

MOST_ROWS = 1024
"""Of a table that are looked at in one push."""

COUNTERS = 1024
"""Of ids, in each table: an id is found hot if more than one of so many ids looked at is this."""

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


class _Table:
    """The statistics of a table, from the pushes that were looked at."""

    def __init__(self) -> None:
        self.gradients, self.rows = Norms(), Norms()
        self.hot = HotIds()
        self.pushes = 0


@dataclass(frozen=True)
class Seen:
    """The statistics of a table at one moment. Norms have the buckets of proto/values/norms.py.

    hot: (id, share of the pushes looked at) of the most frequent ids, as many as are wanted.
    """

    gradients: pb.Distribution
    rows: pb.Distribution
    hot: list[tuple[int, float]]


class PushSamples:
    """Looks at pushes to `server`; told with its status, and when the page is asked for."""

    def __init__(
        self,
        server: ParameterServer,
        hot_ids: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """hot_ids: so many of each table are told, which shows ids of records. clock: seconds."""
        self._server = server
        self.hot_ids = hot_ids
        self._clock = clock
        self._lock = threading.Lock()
        self._due = float("-inf")
        self._tables: dict[str, _Table] = {}
        self.seen: dict[str, Seen] = {}
        """By name of the table. Replaced whole by each look, so readers never wait for one."""

    def watching(self, handlers: Handlers) -> Handlers:
        """The same handlers; pushes are looked at, and the status has the norms of rows."""
        status = handlers[methods.STATUS]

        def told(request: Any) -> Any:
            answer, seen = status(request), self.seen
            for table in answer.tables:
                if table.name in seen:
                    table.row_norms.CopyFrom(seen[table.name].rows)
            return answer

        # Of those that Python does not see, it is to see the next one that is due.
        self._server.answerer.leave_from(self._due)
        push = around(handlers[methods.PUSH], self.looked_at)
        return {**handlers, methods.PUSH: push, methods.STATUS: told}

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
                    self._server.answerer.leave_from(self._due)
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
            if self.hot_ids:
                table.hot.add(ids)
        self.seen = {name: self._seen(table) for name, table in self._tables.items()}

    def _seen(self, table: _Table) -> Seen:
        hot = [(number, count / table.pushes) for number, count in table.hot.top(self.hot_ids)]
        return Seen(table.gradients.to_message(), table.rows.to_message(), hot)
