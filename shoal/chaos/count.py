"""How often each record was trained, by the model's own rows, against input and audit.

The model is shoal/counting's: the row of an id is minus the number of times that it was
trained. It is expected to be epochs x occurrences in the input, plus what the audit calls
repeated, minus what it calls lost. Each range of those counts where its server holds the
row. Plain functions; no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from shoal.chaos.count_job import GROUPS, Int64, Source
from shoal.chaos.faulty import PREFIX
from shoal.native.ids import slot_of
from shoal.proto.routing import Routing, slice_of

RECORDS_TABLE, USERS_TABLE, DENSE = "records", "users", "groups"

SHOWN = 10
"""Differences of a table that are printed."""


@dataclass(frozen=True)
class Course:
    """A job from a start or resumption on. since: wall-clock seconds. servers: how many."""

    since: float
    servers: int


@dataclass(frozen=True)
class Difference:
    """A row that is not as expected, between low and high; None: no such id is in the input."""

    id: int
    server: int
    low: int | None
    high: int | None
    found: float

    def __str__(self) -> str:
        expected = "none of this id" if self.low is None else f"{self.low:,}"
        if self.high != self.low:
            expected += f" to {self.high:,}"
        return f"{self.id} of ps-{self.server}: expected {expected}, found {self.found:,.10g}"


@dataclass
class Count:
    """The rows of one table. exact: those of which the audit leaves no doubt, and are so.

    expected, found: sums over all rows; expected between two where there is doubt.
    """

    table: str
    rows: int
    exact: int
    expected: tuple[int, int]
    found: float
    differences: list[Difference] = field(default_factory=list)


@dataclass
class Comparison:
    """All tables. doubts: why a row could only be compared with bounds, in words."""

    counts: list[Count]
    doubts: list[str]
    repeated: int
    lost: int

    @property
    def differs(self) -> bool:
        """Whether a row or a sum is not as it should be."""
        return any(
            count.differences or not count.expected[0] <= count.found <= count.expected[1]
            for count in self.counts
        )

    def lines(self) -> list[str]:
        """The comparison for people."""
        lines = [
            f"count: {self.repeated:,} repeated and {self.lost:,} lost, by the audit "
            "(records, of each server one)"
        ]
        for count in self.counts:
            low, high = count.expected
            expected = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            lines.append(
                f"  {count.table:<8} {count.rows:>8,} rows checked, {count.exact:>8,} exact; "
                f"sum {count.found:,.10g}, expected {expected}"
            )
        lines += [f"  by bounds only: {doubt}" for doubt in self.doubts]
        for count in self.counts:
            shown = count.differences[:SHOWN]
            lines += [f"DIFFERENCE: {count.table}: {each}" for each in shown]
            if (more := len(count.differences) - len(shown)) > 0:
                lines.append(f"DIFFERENCE: {count.table}: and {more:,} more")
        return lines


class _Expected:
    """What the rows of one table are to be: low and high, int64 [rows], by id ascending."""

    def __init__(self, table: str, sources: Sequence[Source], epochs: int) -> None:
        self.table = table
        self._keys = {source.name: _keys(table, source) for source in sources}
        self.ids, occurrences = np.unique(
            np.concatenate(list(self._keys.values())), return_counts=True
        )
        self.low = occurrences.astype(np.int64) * epochs
        self.high = self.low.copy()

    def owners(self, servers: int) -> npt.NDArray[np.int64]:
        """The server that holds each row, int64 [rows]."""
        return owners(self.table, self.ids, servers)

    def apply(self, each: Mapping[str, Any], servers: Sequence[int]) -> None:
        """Count a range. servers: how many there may have been then."""
        keys = self._keys[each["source"].removeprefix(PREFIX)][each["start"] : each["end"]]
        times = np.zeros_like(self.low)
        np.add.at(times, np.searchsorted(self.ids, keys), 1)
        held = [
            np.ones(len(times), bool)
            if each["server"] is None
            else self.owners(count) == each["server"]
            for count in servers
        ]
        surely, perhaps = np.logical_and.reduce(held), np.logical_or.reduce(held)
        if each["kind"] == "repeated":
            self.low += times * surely
            self.high += times * perhaps
        else:
            self.low -= times * perhaps
            self.high -= times * surely

    def compared(self, found: Mapping[int, float], servers: int) -> Count:
        """The rows that were found, id -> count, against the expected ones."""
        values = np.array([found.get(int(i), 0.0) for i in self.ids])
        within = (self.low <= values) & (values <= self.high) & (values == np.rint(values))
        held = self.owners(servers)
        differences = [
            Difference(
                int(self.ids[i]), int(held[i]), int(self.low[i]), int(self.high[i]), values[i]
            )
            for i in np.flatnonzero(~within)
        ]
        foreign = np.array(sorted(found.keys() - set(self.ids.tolist())), np.int64)
        differences += [
            Difference(int(i), int(server), None, None, found[int(i)])
            for i, server in zip(foreign, owners(self.table, foreign, servers), strict=True)
        ]
        return Count(
            self.table,
            len(self.ids),
            int(np.sum(within & (self.low == self.high))),
            (int(self.low.sum()), int(self.high.sum())),
            float(sum(found.values())),
            differences,
        )


def compare(
    output: Path,
    sources: Sequence[Source],
    epochs: int,
    audit: Mapping[str, Any],
    courses: Sequence[Course],
) -> Comparison:
    """Compare the export of a job with its data and its audit (`shoal audit --json`).

    output: the export. epochs: passes over the data that were to be made. courses: the starts
    and resumptions of the job, in order. Raises OSError if the export cannot be read.
    """
    ranges = audit["ranges"]
    counts, doubts = [], []
    in_doubt = sum(
        len(set(servers_of(each, courses))) > 1 for each in ranges if each["server"] is not None
    )
    if in_doubt:
        doubts.append(
            f"{in_doubt} ranges may be of either number of servers, before or after a resumption"
        )
    for table in (RECORDS_TABLE, USERS_TABLE, DENSE):
        expected = _Expected(table, sources, epochs)
        for each in ranges:
            expected.apply(each, servers_of(each, courses))
        counts.append(expected.compared(found_rows(output, table), courses[-1].servers))
    sizes = {
        kind: sum(each["end"] - each["start"] for each in ranges if each["kind"] == kind)
        for kind in ("repeated", "lost")
    }
    return Comparison(counts, doubts, sizes["repeated"], sizes["lost"])


def servers_of(each: Mapping[str, Any], courses: Sequence[Course]) -> list[int]:
    """How many servers the job may have had in the time of a range; usually one number."""
    if "servers" in each:
        return [each["servers"]]
    begin, end = (datetime.fromisoformat(each[name]).timestamp() for name in ("from", "upto"))
    ends = [course.since for course in courses[1:]] + [float("inf")]
    found = {
        course.servers
        for course, until in zip(courses, ends, strict=True)
        if course.since <= end and begin < until
    }
    return sorted(found) or [courses[0].servers]


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
