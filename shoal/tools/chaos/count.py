"""Compare how often each record was trained, by the model's own rows, with input and audit.

The model is shoal/tools/counting's: the row of an id is minus the number of times that it was
trained. It is expected to be epochs x occurrences in the input, plus what the audit calls
repeated, minus what it calls lost. Each range of those counts where its server holds the
row. With admission the row begins with the k-th time. Where the input alone does not
determine the row, the row has bounds. Plain functions; no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from shoal.config.spans import seconds_of
from shoal.native.ids import slot_of
from shoal.proto.values.routing import Routing, slice_of
from shoal.tools.chaos.count_job import GROUPS, RECORDS_TABLE, Int64, Source
from shoal.tools.chaos.faulty import PREFIX
from shoal.tools.chaos.lifecycle import capped, expiring

USERS_TABLE, DENSE = "users", "groups"

Options = Mapping[str, Mapping[str, Any]]
"""Of tables, as table_options has them."""

SHOWN = 10
"""Differences of a table that are printed."""


@dataclass(frozen=True)
class Difference:
    """A row that is not as expected: least and most. None: no such id is in the input."""

    id: int
    server: int
    expected: tuple[int, int] | None
    found: float

    def __str__(self) -> str:
        expected = "none of this id" if self.expected is None else span_of(*self.expected)
        return f"{self.id} of ps-{self.server}: expected {expected}, found {self.found:,.10g}"


@dataclass
class Count:
    """The rows of one table. exact: those that are as expected.

    expected: least and most of the sum over all, which found is.
    """

    table: str
    rows: int
    exact: int
    expected: tuple[int, int]
    found: float
    differences: list[Difference] = field(default_factory=list)


@dataclass
class Comparison:
    """All tables. repeated, lost: records by the audit, of each server one.

    wrong: what else is not as it should be, in words.
    """

    counts: list[Count]
    repeated: int
    lost: int
    wrong: list[str] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """True if a row or a sum is not as it should be."""
        return bool(self.wrong) or any(
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
            lines.append(
                f"  {count.table:<8} {count.rows:>8,} rows checked, {count.exact:>8,} exact; "
                f"sum {count.found:,.10g}, expected {span_of(*count.expected)}"
            )
        for count in self.counts:
            shown = count.differences[:SHOWN]
            lines += [f"DIFFERENCE: {count.table}: {each}" for each in shown]
            if (more := len(count.differences) - len(shown)) > 0:
                lines.append(f"DIFFERENCE: {count.table}: and {more:,} more")
        return lines + [f"DIFFERENCE: {each}" for each in self.wrong]


def span_of(least: int, most: int) -> str:
    """Bounds in words, or the only value within them."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


@dataclass(frozen=True)
class Part:
    """The training that one job of a series had to do. epochs: passes that it had to make.

    audit: `shoal audit --json`. stopped: a rule ended it early. moved: rows moved between servers
    while it trained. gradients: their number in an update; short: updates with fewer. batch: of
    one gradient.
    """

    sources: Sequence[Source]
    epochs: int
    audit: Mapping[str, Any]
    stopped: bool = False
    moved: bool = False
    gradients: int = 1
    short: int = 0
    batch: int = 0


class _Expected:
    """The expected rows of one table: least and most, int64 [rows], by id ascending."""

    def __init__(self, table: str, parts: Sequence[Part]) -> None:
        self.table = table
        self._keys = {
            source.name: _keys(table, source) for part in parts for source in part.sources
        }
        self.ids = np.unique(np.concatenate(list(self._keys.values())))
        self.least = np.zeros(len(self.ids), np.int64)
        self.most = self.least.copy()

    def owners(self, servers: int) -> Int64:
        """The server that holds each row, int64 [rows]."""
        return owners(self.table, self.ids, servers)

    def train(self, part: Part, times: Mapping[str, tuple[Int64, Int64]]) -> None:
        """Count the records of a job. times: of each source, at least and at most (see _times)."""
        for source in part.sources:
            least, most = times[source.name]
            self._add(source.name, slice(None), least, self.least)
            self._add(source.name, slice(None), most, self.most)
        for each in part.audit["ranges"]:
            self.apply(each, moved=part.moved)

    def apply(self, each: Mapping[str, Any], *, moved: bool) -> None:
        """Count a range of the audit. moved: who held a row at that time is not known."""
        more = each["kind"] == "repeated"
        add = np.zeros_like(self.least)
        span = slice(each["start"], each["end"])
        self._add(each["source"].removeprefix(PREFIX), span, 1, add)
        if each["server"] is None or not moved:
            if each["server"] is not None:
                add *= self.owners(each["servers"]) == each["server"]
            self.least += add if more else -add
            self.most += add if more else -add
        elif more:
            self.most += add
        else:
            self.least -= add

    def _add(self, name: str, span: slice, times: Int64 | int, *to: Int64) -> None:
        places = np.searchsorted(self.ids, self._keys[name][span])
        for each in to:
            np.add.at(each, places, times)

    def admitted(self, admit_after: int) -> None:
        """A row has its updates from that time on; before, there is none."""
        self.least = np.maximum(0, self.least - (admit_after - 1))
        self.most = np.maximum(0, self.most - (admit_after - 1))

    def compared(self, found: Mapping[int, float], servers: int, more: int) -> Count:
        """The rows that were found, id -> count, against the expected ones.

        more: at most so much of the sum is above the expectation.
        """
        values = np.array([found.get(int(i), 0.0) for i in self.ids])
        exact = (self.least <= values) & (values <= self.most + more)
        held = self.owners(servers)
        differences = [
            Difference(
                int(self.ids[i]), int(held[i]), (int(self.least[i]), int(self.most[i])), values[i]
            )
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
            (int(self.least.sum()), int(self.most.sum()) + more),
            float(sum(found.values())),
            differences,
        )


def compare(
    output: Path, parts: Sequence[Part], servers: int, options: Options | None = None
) -> Comparison:
    """Compare the export of the last job of a series with the data and the audit of each.

    output: the export. servers: how many the job had at its end, by which a row that differs is
    called. options: of tables. Of the records' table each push has an id once, so that admission
    is exact; expire_after and max_rows give bounds (lifecycle.py), where data is trained in order.
    Raises OSError if the export cannot be read.
    """
    options = options or {}
    ranges = [each for part in parts for each in part.audit["ranges"]]
    gradients = parts[-1].gradients
    rows = {
        table: {key: gradients * value for key, value in found_rows(output, table).items()}
        for table in (RECORDS_TABLE, USERS_TABLE, DENSE)
    }
    more = sum(part.short * part.batch for part in parts) * (gradients - 1) ** 2
    wrong: list[str] = []
    times = [_times(part, rows[RECORDS_TABLE], wrong) for part in parts]
    counts = []
    for table, found in rows.items():
        expected = _Expected(table, parts)
        for part, trained in zip(parts, times, strict=True):
            expected.train(part, trained)
        of_table = options.get(table, {})
        expected.admitted(of_table.get("admit_after", 1))
        if of_table.get("expire_after"):
            keys = np.concatenate([_keys(table, each) for part in parts for each in part.sources])
            least, most = expiring(keys, expected.ids, seconds_of(of_table["expire_after"]))
            disturbed = bool(ranges) or any(part.audit["records"]["lost"] for part in parts)
            expected.least = np.zeros_like(least) if disturbed else least
            expected.most = expected.most if disturbed else most
        if cap := of_table.get("max_rows"):
            wrong += capped(np.array(sorted(found), np.int64), expected.ids, cap)
            expected.least = np.zeros_like(expected.least)
        counts.append(expected.compared(found, servers, more))
    sizes = {
        kind: sum(each["end"] - each["start"] for each in ranges if each["kind"] == kind)
        for kind in ("repeated", "lost")
    }
    return Comparison(counts, sizes["repeated"], sizes["lost"], wrong)


def _times(
    part: Part, found: Mapping[int, float], wrong: list[str]
) -> dict[str, tuple[Int64, Int64]]:
    """The times that the records of each source had to be trained, at least and at most.

    Of each: int64 [records]. If a rule stopped a job, its rows tell which records it trained, and
    its audit how many. So the other tables are compared with the records' own. After a move it is
    not known which records of a range were repeated: a row may have them as its last epoch.
    """
    if not part.stopped:
        every = {each.name: np.full(len(each.records), part.epochs) for each in part.sources}
        return {name: (times, times) for name, times in every.items()}
    by_audit = _Expected(RECORDS_TABLE, [part])
    for each in part.audit["ranges"]:
        by_audit.apply(each, moved=part.moved)
    times = {}
    for source in part.sources:
        own = np.array([found.get(i, 0) for i in source.records.tolist()]).astype(np.int64)
        more = np.searchsorted(by_audit.ids, source.records)
        least, most = own - by_audit.most[more], own - by_audit.least[more]
        # A record that was repeated was trained before.
        least = np.minimum(np.maximum(least, own > 0), most)
        times[source.name] = np.clip(least, 0, part.epochs), np.clip(most, 0, part.epochs)
    told = sum(part.audit["records"][name] for name in ("once", "more"))
    trained = [sum(int(each[i].sum()) for each in times.values()) for i in (0, 1)]
    if not trained[0] <= told <= trained[1]:
        wrong.append(
            f"by the rows {span_of(trained[0], trained[1])} records were trained, "
            f"by the audit {told:,}"
        )
    return times


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
