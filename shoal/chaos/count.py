"""How often each record was trained, by the model's own rows, against input and audit.

The model is shoal/counting's: the row of an id is minus the number of times that it was
trained. It is expected to be epochs x occurrences in the input, plus what the audit calls
repeated, minus what it calls lost. Each range of those counts where its server holds the
row. With admission the row begins with the k-th time. Plain functions; no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from shoal.chaos.count_job import GROUPS, RECORDS_TABLE, Int64, Source
from shoal.chaos.faulty import PREFIX
from shoal.native.ids import slot_of
from shoal.proto.routing import Routing, slice_of

USERS_TABLE, DENSE = "users", "groups"

SHOWN = 10
"""Differences of a table that are printed."""


@dataclass(frozen=True)
class Difference:
    """A row that is not as expected; None: no such id is in the input."""

    id: int
    server: int
    expected: int | None
    found: float

    def __str__(self) -> str:
        expected = "none of this id" if self.expected is None else f"{self.expected:,}"
        return f"{self.id} of ps-{self.server}: expected {expected}, found {self.found:,.10g}"


@dataclass
class Count:
    """The rows of one table. exact: those that are as expected. expected, found: sums over all."""

    table: str
    rows: int
    exact: int
    expected: int
    found: float
    differences: list[Difference] = field(default_factory=list)


@dataclass
class Comparison:
    """All tables. repeated, lost: records by the audit, of each server one."""

    counts: list[Count]
    repeated: int
    lost: int

    @property
    def differs(self) -> bool:
        """Whether a row or a sum is not as it should be."""
        return any(count.differences or count.found != count.expected for count in self.counts)

    def lines(self) -> list[str]:
        """The comparison for people."""
        lines = [
            f"count: {self.repeated:,} repeated and {self.lost:,} lost, by the audit "
            "(records, of each server one)"
        ]
        for count in self.counts:
            lines.append(
                f"  {count.table:<8} {count.rows:>8,} rows checked, {count.exact:>8,} exact; "
                f"sum {count.found:,.10g}, expected {count.expected:,}"
            )
        for count in self.counts:
            shown = count.differences[:SHOWN]
            lines += [f"DIFFERENCE: {count.table}: {each}" for each in shown]
            if (more := len(count.differences) - len(shown)) > 0:
                lines.append(f"DIFFERENCE: {count.table}: and {more:,} more")
        return lines


class _Expected:
    """What the rows of one table are to be: `times`, int64 [rows], by id ascending."""

    def __init__(self, table: str, sources: Sequence[Source], epochs: int) -> None:
        self.table = table
        self._keys = {source.name: _keys(table, source) for source in sources}
        self.ids, occurrences = np.unique(
            np.concatenate(list(self._keys.values())), return_counts=True
        )
        self.times = occurrences.astype(np.int64) * epochs

    def owners(self, servers: int) -> npt.NDArray[np.int64]:
        """The server that holds each row, int64 [rows]."""
        return owners(self.table, self.ids, servers)

    def apply(self, each: Mapping[str, Any]) -> None:
        """Count a range of the audit."""
        keys = self._keys[each["source"].removeprefix(PREFIX)][each["start"] : each["end"]]
        times = np.zeros_like(self.times)
        np.add.at(times, np.searchsorted(self.ids, keys), 1)
        if each["server"] is not None:
            times *= self.owners(each["servers"]) == each["server"]
        self.times += times if each["kind"] == "repeated" else -times

    def admitted(self, admit_after: int) -> None:
        """A row has its updates from that time on; before, there is none."""
        self.times = np.maximum(0, self.times - (admit_after - 1))

    def compared(self, found: Mapping[int, float], servers: int) -> Count:
        """The rows that were found, id -> count, against the expected ones."""
        values = np.array([found.get(int(i), 0.0) for i in self.ids])
        exact = values == self.times
        held = self.owners(servers)
        differences = [
            Difference(int(self.ids[i]), int(held[i]), int(self.times[i]), values[i])
            for i in np.flatnonzero(~exact)
        ]
        foreign = np.array(sorted(found.keys() - set(self.ids.tolist())), np.int64)
        differences += [
            Difference(int(i), int(server), None, found[int(i)])
            for i, server in zip(foreign, owners(self.table, foreign, servers), strict=True)
        ]
        return Count(
            self.table,
            len(self.ids),
            int(exact.sum()),
            int(self.times.sum()),
            float(sum(found.values())),
            differences,
        )


def compare(
    output: Path,
    sources: Sequence[Source],
    epochs: int,
    audit: Mapping[str, Any],
    servers: int,
    admit_after: int = 1,
) -> Comparison:
    """Compare the export of a job with its data and its audit (`shoal audit --json`).

    output: the export. epochs: passes over the data that were to be made. servers: how many the
    job had at its end, by which a row that differs is called. admit_after: of the records'
    table, of which each push has an id once. Raises OSError if the export cannot be read.
    """
    ranges = audit["ranges"]
    counts = []
    for table in (RECORDS_TABLE, USERS_TABLE, DENSE):
        expected = _Expected(table, sources, epochs)
        for each in ranges:
            expected.apply(each)
        if table == RECORDS_TABLE:
            expected.admitted(admit_after)
        counts.append(expected.compared(found_rows(output, table), servers))
    sizes = {
        kind: sum(each["end"] - each["start"] for each in ranges if each["kind"] == kind)
        for kind in ("repeated", "lost")
    }
    return Comparison(counts, sizes["repeated"], sizes["lost"])


def owners(table: str, ids: Int64, servers: int) -> npt.NDArray[np.int64]:
    """Which of so many servers holds each id's row, int64 [ids]; a dense weight's is its slice."""
    if table != DENSE:
        return Routing.even(servers).owners[slot_of(ids)].astype(np.int64)
    held = np.zeros(GROUPS, np.int64)
    for server in range(servers):
        held[slice_of(GROUPS, server, servers)] = server
    return held[np.clip(ids, 0, GROUPS - 1)]


def found_rows(output: Path, table: str) -> dict[int, float]:
    """Id -> how often it was trained, by the exported rows. Raises OSError."""
    if table != DENSE:
        rows = pq.read_table(output / "tables" / f"{table}.parquet").to_pydict()
        return {i: -row[0] for i, row in zip(rows["id"], rows["vector"], strict=True)}
    (row,) = pq.read_table(output / "dense.parquet").to_pylist()
    return {i: -value for i, value in enumerate(row["values"])}


def _keys(table: str, source: Source) -> Int64:
    """The id that each record counts in, int64 [records]."""
    if table == USERS_TABLE:
        return source.users
    return source.records if table == RECORDS_TABLE else source.records % GROUPS
