"""The fate of each record, from intervals: exact, however many records there are.

Owns the arithmetic of the audit. The caller that adds an interval decides its meaning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.master.work.units import Source, Span


@dataclass(frozen=True)
class Interval:
    """Records [start, end) of a source in one epoch.

    kind: "trained" (all servers have acknowledged their gradients), "touched" (some
    server may have applied them, and the rest was given out again), "lost" (trained, and
    trained again, since a server has lost it) or "failed" (given up).
    """

    kind: str
    epoch: int
    span: Span


@dataclass(frozen=True)
class Fate:
    """Records [start, end) of a source in one epoch, to all of which the same happened."""

    epoch: int
    span: Span
    counts: Counter[str]

    @property
    def trained(self) -> int:
        """The number of times that the records count as trained."""
        return self.counts["trained"] - self.counts["lost"]


class Coverage:
    """Intervals over the epochs of a job's training data."""

    def __init__(self, sources: tuple[Source, ...], epochs: int) -> None:
        self._lengths = {source.name: source.records for source in sources}
        self._epochs = epochs
        self._steps: defaultdict[tuple[int, str], list[tuple[int, int, str]]] = defaultdict(list)
        self.total = sum(self._lengths.values()) * epochs

    def extend(self, sources: Iterable[Source]) -> None:
        """There are more sources; those that are known already change nothing."""
        for source in sources:
            if source.name not in self._lengths:
                self._lengths[source.name] = source.records
                self.total += source.records * self._epochs

    def emptied(self) -> Coverage:
        """The same data without an interval."""
        sources = tuple(Source(name, records) for name, records in self._lengths.items())
        return Coverage(sources, self._epochs)

    def add(self, interval: Interval) -> None:
        """Count an interval; an empty one changes nothing."""
        span = interval.span
        if len(span) > 0:
            steps = self._steps[interval.epoch, span.source]
            steps.append((span.start, 1, interval.kind))
            steps.append((span.end, -1, interval.kind))

    def fates(self) -> Iterator[Fate]:
        """All records of all epochs, cut where anything changes."""
        for epoch in range(self._epochs):
            for source, records in self._lengths.items():
                yield from self._fates(epoch, source, records)
        known = {(epoch, source) for epoch in range(self._epochs) for source in self._lengths}
        for epoch, source in self._steps.keys() - known:
            # Of data that nobody described: accounted for by nothing.
            yield from self._fates(epoch, source, 0)

    def difference(self, other: Coverage) -> tuple[int, int]:
        """Records that count as trained here and not in `other`, and the other way round."""
        both = self.emptied()
        for name, coverage in (("here", self), ("there", other)):
            for fate in coverage.fates():
                if fate.trained:
                    both.add(Interval(name, fate.epoch, fate.span))
        apart: Counter[str] = Counter()
        for fate in both.fates():
            if len(fate.counts) == 1:
                apart[next(iter(fate.counts))] += len(fate.span)
        return apart["here"], apart["there"]

    def _fates(self, epoch: int, source: str, records: int) -> Iterator[Fate]:
        counts: Counter[str] = Counter()
        steps = sorted(self._steps.get((epoch, source), ()))
        at = 0
        for position, change, kind in [*steps, (records, 0, "")]:
            if position > at:
                yield Fate(epoch, Span(source, at, position), +counts)
                at = position
            if kind:
                counts[kind] += change
