"""A forecast of the memory that a server will need, from its growth so far. No I/O, no clock.

The number of distinct ids in a stream grows by a power of its length, at most 1 (Heaps' law: H. S.
Heaps, Information Retrieval, 1978). The memory of tables does the same; all else that a server
needs, as its log and what its first checkpoint takes, is as much as now. The power is taken from
the last doubling of the records trained: it tells of tables that grow no more, as they have
`max_rows` or have met all ids. After the first epoch no id is new.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from shoal.base.words import size

EARLIEST = 1 / 16
"""Of the first epoch: before it, nothing is said."""

MOST = 256
"""Samples that are kept: then each second one is forgotten."""

FULL = 0.9
"""Of the memory there is: more is too much."""

AGAIN = 1.25
"""A forecast is told again if it is so many times the one that was told."""


class MemoryForecast:
    """That of one server.

    bytes: at the end of the first epoch, or now if that has ended; 0: not known yet.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._records: list[int] = []
        self._tables: list[int] = []

    def note(self, records: int, used: int, tables: int, epoch: int) -> None:
        """Its memory in bytes after so many records of training, and what of it is tables.

        epoch: records of the first epoch; 0 if that is not known.
        """
        if not used:
            return
        if not self._records or records > self._records[-1]:
            self._records.append(records)
            self._tables.append(tables)
            if len(self._records) > MOST:
                del self._records[1::2], self._tables[1::2]
        elif records == self._records[0]:
            self._tables[0] = tables  # until training goes on: what it has then is no new row
        if epoch:
            grown = self._forecast(records, tables, epoch)
            self.bytes = 0 if grown is None else used - tables + grown

    def _forecast(self, records: int, tables: int, epoch: int) -> int | None:
        """The bytes of tables; None: not known yet."""
        if records >= epoch:
            return tables
        begun, first = self._records[0], self._tables[0]
        done = records - begun
        if done < epoch * EARLIEST:
            return None
        # About half of what was done, if there is a sample of that.
        middle = bisect_left(self._records, begun + done // 2)
        part, half = self._records[middle] - begun, self._tables[middle] - first
        grown = tables - first
        if grown <= 0:
            return tables
        power = math.log(grown / half, done / part) if half > 0 and part < done else 1.0
        power = min(1.0, max(0.0, power))
        return int(first + grown * math.pow((epoch - begun) / done, power))


class MemoryForecasts:
    """Forecasts of all servers of a job. shared: they have the memory of one machine together."""

    def __init__(self, servers: int, *, shared: bool) -> None:
        self._shared = shared
        self._servers = [MemoryForecast() for _ in range(servers)]
        self._told = [0.0] * servers

    def have(self, servers: int) -> None:
        """The job has so many servers now, whose rows are others than before."""
        self._servers = [MemoryForecast() for _ in range(servers)]
        self._told = [0.0] * servers

    def of(self, server: int) -> int:
        """The forecast of a server, in bytes; 0: not known yet."""
        return self._servers[server].bytes

    def begin(self, server: int) -> None:
        """Another process is that server now."""
        self._servers[server] = MemoryForecast()

    def note(
        self, server: int, records: int, used: int, tables: int, limit: int, epoch: int
    ) -> str:
        """The message about a server's memory, if one is due now; "" if none.

        records, used, tables, epoch: as `MemoryForecast.note`. limit: bytes that it may have; 0 if
        that is not known.
        """
        self._servers[server].note(records, used, tables, epoch)
        if not limit:
            return ""
        if not self._shared:
            return self._warning(f"ps-{server}", server, self.of(server), limit)
        every = [each.bytes for each in self._servers]
        return self._warning("the servers", 0, sum(every), limit) if all(every) else ""

    def _warning(self, who: str, place: int, needed: int, limit: int) -> str:
        if needed < max(FULL * limit, AGAIN * self._told[place]):
            return ""
        self._told[place] = needed
        return (
            f"warning: {who} will need about {size(needed)} of memory at the end of the first "
            f"epoch, and {size(limit)} is there. Use more memory or more servers (shoal scale "
            "--servers), or give tables max_rows, expire_after or "
            "admit_after (shoal plan says what these save)"
        )
