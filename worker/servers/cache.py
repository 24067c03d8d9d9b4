"""A worker's cache of rows: what was pulled lately is not pulled again.

Owns which rows are held, how old they are, and joining them with what the servers gave. A
cached row lacks every push since it was pulled, also the worker's own: it is used for up to
a given number of pushes of its server, and pulled again then.

Direct-mapped: each id has one place, and a row is there until another one takes it. Popular
ids come back before that, which is what the cache is for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids
from shoal.native.arrays import aligned_empty
from shoal.native.gradients import gather_rows, scatter_rows
from shoal.worker.servers.ids import TableIds

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

ENTRY_BYTES = 16
"""Of each row beside its values: id and version."""

NEVER = np.iinfo(np.int64).min // 2
"""Version of an empty place: older than any."""


class _Table:
    """The places of one table."""

    def __init__(self, places: int, dim: int) -> None:
        self.ids = np.zeros(places, np.int64)
        self.versions = np.full(places, NEVER, np.int64)
        self.rows = np.empty((places, dim), np.float32)


class Cached:
    """One pull: what the cache has of it, and what is to be asked of the servers.

    missing: as the ids that were asked for, without those that were found.
    oldest: for each server the version of the oldest row found, None if none was.
    """

    def __init__(self, cache: RowCache, ids: Sequence[TableIds]) -> None:
        self._cache = cache
        self._ids = ids
        made: dict[int, tuple[TableIds, Int32, npt.NDArray[np.bool_]]] = {}
        self.oldest: list[int | None] = [None] * len(cache.versions)
        for table, each in enumerate(ids):
            if id(each) not in made:
                made[id(each)] = self._look_up(table, each)
        self._found = [made[id(each)] for each in ids]
        self.missing = [missing for missing, _, _ in self._found]

    def _look_up(self, table: int, ids: TableIds) -> tuple[TableIds, Int32, npt.NDArray[np.bool_]]:
        held = self._cache.tables[table]
        places = self._cache.places_of(ids.unique)
        versions = held.versions[places]
        counts = np.diff(ids.offsets)
        least = np.repeat(self._cache.versions - self._cache.staleness, counts)
        found = (held.ids[places] == ids.unique) & (versions >= least)
        misses = np.concatenate([[0], np.cumsum(~found)])
        for server in range(counts.size):
            own = slice(ids.offsets[server], ids.offsets[server + 1])
            if found[own].any():
                oldest = int(versions[own][found[own]].min())
                before = self.oldest[server]
                self.oldest[server] = oldest if before is None else min(before, oldest)
        missing = TableIds(ids.unique[~found], misses[ids.offsets], [])
        self._cache.asked += found.size
        self._cache.hits += int(found.sum())
        return missing, places, found

    def join(self, pulled: Sequence[Float32], versions: Sequence[int]) -> list[Float32]:
        """The rows of all ids; what was pulled is held from now on.

        pulled: the rows of `missing`. versions: of the servers, as they gave them.
        """
        joined = []
        for table, (rows, (missing, places, found)) in enumerate(
            zip(pulled, self._found, strict=True)
        ):
            held = self._cache.tables[table]
            whole = aligned_empty((found.size, held.rows.shape[1]), np.float32)
            ours, theirs = (np.flatnonzero(which).astype(np.int32) for which in (found, ~found))
            fresh = places[theirs]
            # native/'s moves are several times faster than NumPy's indexing of rows.
            scatter_rows(gather_rows(held.rows, places[ours]), ours, whole)
            scatter_rows(rows, theirs, whole)
            scatter_rows(rows, fresh, held.rows)
            joined.append(whole)
            held.ids[fresh] = missing.unique
            held.versions[fresh] = np.repeat(np.array(versions), np.diff(missing.offsets))
        self._cache.at(versions)
        return joined


class RowCache:
    """Rows of all tables of a model, in so many bytes; for one thread.

    dims: length of a row of each table. staleness: pushes that a server may have applied
        since a row was pulled from it.
    """

    def __init__(self, capacity: int, staleness: int, dims: Sequence[int], servers: int) -> None:
        row = sum(4 * dim + ENTRY_BYTES for dim in dims)
        # A power of two, so that the high bits of the hash are the place.
        self._bits = min(30, max(1, (capacity // max(1, row)).bit_length() - 1))
        self.staleness = staleness
        self._dims = dims
        self.versions = np.zeros(servers, np.int64)
        self.asked = 0
        self.hits = 0
        self._empty()

    def _empty(self) -> None:
        self.tables = [_Table(1 << self._bits, dim) for dim in self._dims]

    def places_of(self, ids: Int64) -> Int32:
        """The place at which each id is held, if it is."""
        return (native_ids.mix64(ids) >> np.uint64(64 - self._bits)).astype(np.int32)

    def look_up(self, ids: Sequence[TableIds]) -> Cached:
        """Find what is held and fresh enough."""
        return Cached(self, ids)

    def moved(self, servers: int) -> None:
        """Rows are at other servers now, whose versions say nothing of what is held."""
        self.versions = np.zeros(servers, np.int64)
        self._empty()

    def at(self, versions: Sequence[int]) -> None:
        """The servers are at these versions.

        A server that went back was started again from a checkpoint: what was pulled from
        it before is of a past that did not happen, and is forgotten.
        """
        now = np.array(versions, np.int64)
        if (now < self.versions).any():
            self._empty()
        self.versions = now
