"""Topics of Kafka as training data: segments of partitions are the sources.

A segment (segments.py) is read by its offsets, whoever else reads the topic; no group is joined.
Each offset of a segment is a record: one that is not there is an error, which names it. Where
offsets are missing by design, after transactions or compaction, `gaps=count` has those that are
there counted before a segment is trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from shoal.data.blocks import DamagedError
from shoal.data.indexed_reader import IndexedReader
from shoal.data.places.index_store import KEPT
from shoal.data.places.recent import Recent
from shoal.data.reader import Source, check_range
from shoal.data.readers.kafka.broker import Broker, KafkaBroker
from shoal.data.readers.kafka.messages import messages_of
from shoal.data.readers.kafka.place import KafkaPlace
from shoal.data.readers.kafka.segments import (
    Position,
    Segment,
    arrived,
    ends_of,
    positions_of,
    remembered,
    token_of,
    with_beginnings,
)
from shoal.data.schemas import merged_schema
from shoal.errors import GoneError, UserError

SAMPLED = 512
"""Messages of a partition from which types are guessed."""

SPARED = 64
"""Messages of a sample that may be unreadable: the types are those of the others."""

COUNTED = 100_000
"""Offsets whose counting costs as much as a footer."""

SAMPLED_PARTITIONS = 8
"""From which types are guessed at most."""

Sample = list[tuple[int, bytes]]
"""Messages with their offsets."""


class KafkaReader(IndexedReader):
    """Reads a topic: `kafka://HOST:PORT/TOPIC?start=...&format=...`, as of KafkaPlace.

    broker: gives the messages; those that the URL names where None. now: tells the time, in seconds
    since 1970. options: see IndexedReader. Asks no broker yet. Raises UserError for a URL of
    another form, or if confluent-kafka is not installed.
    """

    def __init__(
        self,
        pattern: str,
        *,
        broker: Broker | None = None,
        now: Callable[[], float] = time.time,
        **options: Any,
    ) -> None:
        super().__init__(pattern, **options)
        self._place = KafkaPlace.parse(pattern, self._flag)
        self._where = f"{self._flag}: {self._place.name}"
        self._broker = broker or KafkaBroker(self._place, self._flag)
        self._now = now
        self._messages = messages_of(self._place)
        self._types: pa.Schema | None = None
        self._trained: dict[int, int] = {}
        self._listed: list[Segment] | None = None
        self._begun: dict[int, int] | None = None
        self._seen: Mapping[int, Position] = {}
        self._sample: tuple[int, Sample] | None = None
        self._lows: dict[int, int] = {}  # the oldest offset by partition, as it was once
        self._counted: Recent[str, Sequence[int]] = Recent(KEPT)

    # ------------------------------------------------------------ sources

    def behind(self, trained: Collection[str]) -> None:
        """See DataReader: each partition is begun behind its last segment of these."""
        self._trained = ends_of(trained, self._place.topic)
        self._listed = self._begun = None

    def _begins(self) -> dict[int, int]:
        """The offset at which the job begins in each partition."""
        if self._begun is None:
            if self._trained:
                # One that no earlier job named was added since.
                marks = self._broker.marks()
                self._begun = {each: self._trained.get(each, 0) for each in marks}
            else:
                self._begun = self._broker.begins(self._place.start)
        return self._begun

    def _segments(self) -> list[Segment]:
        """The segments of the topic as it was when it was listed first, none without a record."""
        if self._listed is None:
            positions = {partition: Position(at) for partition, at in self._begins().items()}
            self._listed, _ = self._arrived(positions, linger=0)
        return self._listed

    def _arrived(
        self, positions: Mapping[int, Position], linger: float
    ) -> tuple[list[Segment], dict[int, Position]]:
        marks, now = self._broker.marks(), self._now()
        topic, rows = self._place.topic, self._place.rows
        try:
            return arrived(topic, positions, marks, rows=rows, linger=linger, now=now)
        except UserError as error:
            raise UserError(f"{self._where}: {error}") from error

    def names(self) -> list[str]:
        """See DataReader: the segments from the beginning to the present end of each partition.

        With an empty one of a partition that has no other.
        """
        topic = self._place.topic
        return [str(each) for each in with_beginnings(self._segments(), self._begins(), topic)]

    def weights(self, names: Sequence[str] | None = None) -> dict[str, float]:
        """See DataReader; without the empty ones, where earlier jobs told where to begin."""
        if names is None:
            names = [str(each) for each in self._segments()] if self._trained else self.names()
        return {name: self._weight(Segment.parse(name)) for name in names}

    def _weight(self, segment: Segment) -> float:
        return 1.0 + (len(segment) / COUNTED if self._place.counts_gaps else 0.0)

    def grows(self) -> None:
        """See DataReader: any topic may; its columns are those of a sample."""

    @property
    def moves(self) -> bool:
        """See DataReader: a topic that has grown is cut into other segments."""
        return True

    def arrivals(self, token: str) -> tuple[list[str], str]:
        """See DataReader: a segment once it is full, or `linger` after its first record was seen.

        Raises UserError if a partition ends before its position, or cannot be listed.
        """
        first = not token
        begins = self._begins() if first else {}
        positions = (
            {partition: Position(at) for partition, at in begins.items()}
            if first
            else remembered(positions_of(token), self._seen)
        )
        found, self._seen = self._arrived(positions, self._place.linger)
        if first and not self._trained:
            found = with_beginnings(found, begins, self._place.topic)
        return [str(each) for each in found], token_of(self._seen)

    def sources(self) -> list[Source]:
        """See DataReader."""
        found = [self.describe(name) for name in self.names()]
        if not any(source.records for source in found):
            raise UserError(
                f"{self._where}: there is no record where the job begins and behind: give "
                "start=earliest, or an earlier time"
            )
        return found

    def describe(self, name: str) -> Source:
        """See DataReader: by the name alone, unless offsets may be missing."""
        segment = self._segment(name)
        if not self._place.counts_gaps:
            return Source(name, len(segment))
        source = Source(name, len(self._offsets(segment)))
        self._store.check(source, "")
        return source

    def _segment(self, name: str) -> Segment:
        segment = Segment.parse(name)
        if segment.topic != self._place.topic:
            raise UserError(f"{self._where}: {name} is no segment of topic {self._place.topic}")
        return segment

    def _offsets(self, segment: Segment) -> Sequence[int]:
        """The offset of each record."""
        if not self._place.counts_gaps:
            return range(segment.first, segment.end)

        def found() -> Sequence[int]:
            table = self._store.get("kafka", str(segment), "", lambda: self._count(segment))
            offsets: Sequence[int] = table["offset"].to_numpy()
            return offsets

        return self._counted.get(str(segment), found)

    def _count(self, segment: Segment) -> pa.Table:
        """The offsets that are there; one that is deleted already counts as if it were."""
        runs = [
            np.asarray(run.offsets)
            for run in self._broker.fetch(segment.partition, segment.first, segment.end)
        ]
        low, _ = self._broker.marks()[segment.partition]
        gone = np.arange(segment.first, min(max(low, segment.first), segment.end))
        there = np.concatenate([*runs, gone[:0]])
        offsets = np.concatenate([gone, there[there >= low]])
        return pa.table({"offset": pa.array(offsets, pa.int64())})

    # ------------------------------------------------------------ columns

    def _full_schema(self) -> pa.Schema:
        if self._types is None:
            self._types = self._guessed()
        return self._types

    def _guessed(self) -> pa.Schema:
        kinds = []
        for partition, sample in self._samples():
            kinds.append((f"partition {partition}", self._kinds(partition, sample)))
        schema, self._faults = merged_schema(
            kinds,
            self._where,
            same_columns=False,
            hint="; &types=NAME:TYPE,... in the URL sets types",
        )
        for name, kind in self._place.types.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, kind))
        if not schema.names:
            raise UserError(
                f"{self._where}: topic {self._place.topic} holds no message that tells the "
                "columns: write some, or name them with &types=NAME:TYPE,... for format=json"
            )
        return schema

    def _kinds(self, partition: int, sample: Sample) -> Mapping[str, pa.DataType | None]:
        """The columns of a sample, which loses those of its messages that cannot be read."""
        spared = 0
        while True:
            try:
                found = self._messages.kinds([value for _, value in sample])
            except DamagedError as error:
                spared += 1
                if spared > SPARED or len(sample) == 1:
                    raise self._damage(error, partition, [at for at, _ in sample]) from error
                del sample[error.record]
            else:
                if self._sample is None:
                    self._sample = partition, sample
                return found

    def _samples(self) -> Iterator[tuple[int, Sample]]:
        """Some messages of some partitions: the first that are read, or the last before them."""
        begins, marks = self._begins(), self._broker.marks()
        full = [partition for partition, (low, high) in sorted(marks.items()) if low < high]
        for partition in full[:: max(1, -(-len(full) // SAMPLED_PARTITIONS))]:
            low, high = marks[partition]
            first = max(begins.get(partition, low), low)
            first = first if first < high else max(low, high - SAMPLED)
            sample = [
                (int(offset), value)
                for run in self._broker.fetch(partition, first, min(first + SAMPLED, high))
                for offset, value in zip(run.offsets, run.values, strict=True)
                if value
            ]
            if sample:
                yield partition, sample

    def doubts(self) -> list[str]:
        """See DataReader: columns of integers that no type holds."""
        self._full_schema()
        return [f"{self._place.name}: {each}" for each in self._messages.doubts()]

    def head(self, records: int) -> tuple[str, list[pa.RecordBatch]]:
        """See DataReader: of the sample that told the types."""
        schema = self._checked_schema()
        if self._sample is None:
            return super().head(records)
        partition, sample = self._sample
        values: list[bytes | None] = [value for _, value in sample[:records]]
        first = sample[0][0]
        name = str(Segment(self._place.topic, partition, first, first + len(values)))
        return name, [self._messages.batch(values, schema)]

    # ------------------------------------------------------------ records

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches as the messages are fetched."""
        schema = self._checked_schema()
        segment = self._segment(source)
        offsets = self._offsets(segment)
        check_range(Source(source, len(offsets)), start, end)
        if start == end:
            return
        wanted = start
        first, last = int(offsets[start]), int(offsets[end - 1])
        if first < self._lows.get(segment.partition, 0):
            self._missing(segment, offsets[start:end], ())
        for run in self._broker.fetch(segment.partition, first, last + 1):
            due = offsets[wanted : min(wanted + len(run.offsets), end)]
            if not np.array_equal(due, run.offsets):
                self._missing(segment, due, run.offsets)
            batch, fault = self._batch(run.values, schema)
            if batch is not None:
                wanted += len(batch)
                yield batch
            if fault is not None:
                raise self._damage(fault, segment.partition, due) from fault
        if wanted < end:
            self._missing(segment, offsets[wanted:end], ())

    def _batch(
        self, values: Sequence[bytes | None], schema: pa.Schema
    ) -> tuple[pa.RecordBatch | None, DamagedError | None]:
        """The messages before the first that cannot be read; and what is wrong with that one."""
        fault: DamagedError | None = None
        while values:
            try:
                return self._messages.batch(values, schema), fault
            except DamagedError as error:
                fault, values = error, values[: error.record]
        return None, fault

    def place(self, source: str, record: int) -> str:
        """See DataReader: the offset."""
        segment = self._segment(source)
        return self._at(segment.partition, int(self._offsets(segment)[record]))

    def reopen(self) -> None:
        """See DataReader."""
        self._lows.clear()
        self._broker.reopen()

    # ------------------------------------------------------------ errors

    def _at(self, partition: int, offset: int) -> str:
        return f"offset {offset} of partition {partition} of topic {self._place.topic}"

    def _damage(self, error: DamagedError, partition: int, offsets: Sequence[int]) -> UserError:
        where = self._at(partition, int(offsets[error.record]))
        return UserError(f"{self._where}: {where}: {error.message}")

    def _missing(self, segment: Segment, due: Sequence[int], found: Sequence[int]) -> NoReturn:
        """Raises UserError for the first offset that is due, and not there."""
        there = {int(each) for each in found}
        first = next((int(each) for each in due if int(each) not in there), None)
        if first is None:
            other = min(there.difference(map(int, due)))
            raise UserError(
                f"{self._where}: {self._at(segment.partition, other)} has a record, and had none "
                "when the segment was counted: was the topic made anew? Begin a new job"
            )
        # The search for the first record that is gone asks for ever smaller ranges.
        low = self._lows.get(segment.partition, 0)
        if first >= low:
            low, _ = self._broker.marks()[segment.partition]
            self._lows[segment.partition] = low
        where = self._at(segment.partition, first)
        if first < low:
            end = min(low, segment.end)
            offsets = self._offsets(segment)
            raise GoneError(
                f"{self._where}: {where} is deleted by now, and so are all up to offset {end - 1}: "
                f"the topic keeps records from offset {low} on. They count as failed: "
                "--max-bad-records N trains the others. Have the topic keep records for longer "
                "(retention.ms, retention.bytes), or give the job more workers",
                int(np.searchsorted(offsets, end) - np.searchsorted(offsets, first)),
            )
        if self._place.counts_gaps:
            raise UserError(
                f"{self._where}: {where} is deleted, after it was counted: compaction of a topic "
                "removes records while the job reads it. They count as failed: --max-bad-records N "
                "trains the others"
            )
        raise UserError(
            f"{self._where}: {where} has no record: offsets are left out by transactions and by "
            "compaction. Give &gaps=count in the URL: then those that are there are counted first"
        )
