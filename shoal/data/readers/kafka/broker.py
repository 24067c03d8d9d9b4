"""Messages by partition and offset, as a reader needs them, and the brokers of Kafka.

librdkafka fetches ahead in its own threads. A consumer is assigned one partition at a time, and
goes on where it stands if the next range begins there. It joins no group. Which offsets are wanted
is kafka_reader.py's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.base.modules.libraries import library
from shoal.base.words import near, one_line
from shoal.data.reader import CHUNK_ROWS
from shoal.data.readers.kafka.place import COMMITTED, EARLIEST, LATEST, KafkaPlace
from shoal.errors import UnreadableError, UserError

ANSWER_SECONDS = 10.0
"""Until a broker counts as away."""

SETTINGS = {
    "enable.auto.commit": False,
    # An offset that is not there is an error, never a reason to read others.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    # What is fetched behind a segment is in vain where another worker has the next one.
    "queued.min.messages": 2 * CHUNK_ROWS,
    # From a queue that is full until it is looked at again: the default is a second.
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 100,
    "log_level": 0,
}

WAIT_SECONDS = 0.2
"""For as many messages as were asked for."""

ERRORS = 20
"""That are kept of those that librdkafka tells by itself."""

NO_OFFSET = -1001
"""The answer of a broker for an offset that was never committed."""


@dataclass(frozen=True)
class Run:
    """Messages of a partition. offsets: ascending, one each. values: None where there is none."""

    offsets: Sequence[int]
    values: list[bytes | None]


class Broker(Protocol):
    """Whoever keeps messages in partitions, by offset. Not thread-safe."""

    def marks(self) -> dict[int, tuple[int, int]]:
        """The oldest offset of each partition, and the one that its next message will have.

        Raises UserError if there is no such topic, UnreadableError if nobody answers.
        """

    def begins(self, start: str | int) -> dict[int, int]:
        """The offset of each partition at which a job begins. start: as of KafkaPlace.

        Raises UserError if there is none, UnreadableError.
        """

    def fetch(self, partition: int, first: int, end: int) -> Iterator[Run]:
        """Yield what there is of the offsets [first, end), in order, and end behind the last one.

        Raises UnreadableError.
        """

    def reopen(self) -> None:
        """Connect anew, after an error."""


class KafkaBroker:
    """The brokers of a topic. flag: begins every error."""

    def __init__(self, place: KafkaPlace, flag: str) -> None:
        self._place = place
        self._where = f"{flag}: {place.name}"
        self._kafka = library("confluent_kafka", self._where, "'shoal[kafka]'")
        self._made: Any = None
        self._errors: deque[Any] = deque(maxlen=ERRORS)
        self._at: tuple[int, int] | None = None  # what the consumer gives next

    def _consumer(self) -> Any:
        if self._made is None:
            options = {
                **SETTINGS,
                **self._place.client,
                "bootstrap.servers": self._place.brokers,
                "group.id": self._place.group,
                "error_cb": self._errors.append,
            }
            try:
                self._made = self._kafka.Consumer(options)
            except self._kafka.KafkaException as error:
                raise UserError(f"{self._where}: {error.args[0].str()}") from error
        return self._made

    def reopen(self) -> None:
        """See Broker."""
        if self._made is not None:
            self._made.close()
        self._made = self._at = None

    # ------------------------------------------------------------ offsets

    def _partitions(self) -> list[int]:
        topic = self._place.topic
        # Not to any partition of the consumer's: what it has fetched stays.
        with self._asking():
            found = self._consumer().list_topics(topic, timeout=ANSWER_SECONDS).topics[topic]
            if found.error is None and found.partitions:
                return sorted(found.partitions)
            if found.error is not None and found.error.code() not in (
                self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
                self._kafka.KafkaError._UNKNOWN_TOPIC,
            ):
                raise self._kafka.KafkaException(found.error)
            known = self._consumer().list_topics(timeout=ANSWER_SECONDS).topics
        raise UserError(
            f"{self._where}: there is no topic {topic}{near(topic, known)}: name one that the "
            "brokers have"
        )

    def marks(self) -> dict[int, tuple[int, int]]:
        """See Broker; with the end of what is committed, where there are transactions."""
        found = {}
        for partition in self._partitions():
            with self._asking(partition):
                found[partition] = self._consumer().get_watermark_offsets(
                    self._of(partition), timeout=ANSWER_SECONDS
                )
        return found

    def begins(self, start: str | int) -> dict[int, int]:
        """See Broker."""
        marks = self.marks()
        if start == EARLIEST:
            return {partition: low for partition, (low, _) in marks.items()}
        if start == LATEST:
            return {partition: high for partition, (_, high) in marks.items()}
        if start == COMMITTED:
            return self._committed(marks)
        assert isinstance(start, int)
        with self._asking():
            found = self._consumer().offsets_for_times(
                [self._of(partition, start) for partition in marks], timeout=ANSWER_SECONDS
            )
            self._check(found)
        offsets = {at.partition: at.offset for at in found}
        # Below 0 where no message is as late.
        return {p: offsets[p] if offsets[p] >= 0 else high for p, (_, high) in marks.items()}

    def _committed(self, marks: dict[int, tuple[int, int]]) -> dict[int, int]:
        with self._asking():
            found = self._consumer().committed(
                [self._of(partition) for partition in marks], timeout=ANSWER_SECONDS
            )
            self._check(found)
        offsets = {at.partition: at.offset for at in found if at.offset != NO_OFFSET}
        if not offsets:
            raise UserError(
                f"{self._where}: group {self._place.group} has committed no offset: name another "
                "one with &group=NAME, or give start=earliest or latest"
            )
        for partition, offset in offsets.items():
            low = marks[partition][0]
            if offset < low:
                raise UserError(
                    f"{self._where}: group {self._place.group} has committed offset {offset} of "
                    f"partition {partition}, and the oldest record is that of offset {low}: the "
                    f"{low - offset} between them are deleted. Give start=earliest to begin with "
                    "the oldest one"
                )
        # Of a partition that was added since, nothing was read.
        return {partition: offsets.get(partition, low) for partition, (low, _) in marks.items()}

    def _check(self, found: Sequence[Any]) -> None:
        for each in found:
            if each.error is not None:
                raise self._kafka.KafkaException(each.error)

    def _of(self, partition: int, offset: int | None = None) -> Any:
        made = self._kafka.TopicPartition
        topic = self._place.topic
        return made(topic, partition) if offset is None else made(topic, partition, offset)

    # ------------------------------------------------------------ messages

    def fetch(self, partition: int, first: int, end: int) -> Iterator[Run]:
        """See Broker."""
        consumer = self._consumer()
        if self._at != (partition, first):
            with self._asking(partition):
                consumer.assign([self._of(partition, first)])
        heard = time.monotonic()
        while first < end:
            self._at = None  # until it is known where the consumer stands
            with self._asking(partition, first):
                messages = consumer.consume(min(CHUNK_ROWS, end - first), timeout=WAIT_SECONDS)
                if not messages and time.monotonic() - heard > ANSWER_SECONDS:
                    raise self._kafka.KafkaException(
                        self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT)
                    )
            if messages:
                heard = time.monotonic()
            run, ended = self._run(messages, partition, first)
            if run is not None:
                inside = sum(each < end for each in run.offsets)
                first = run.offsets[-1] + 1
                if inside == len(run.offsets):
                    self._at = partition, first
                if inside:
                    yield Run(run.offsets[:inside], run.values[:inside])
            # Where it is below, the broker has yet to hear of the last messages.
            if ended is not None and first < end <= ended:
                self._at = partition, ended
                return

    def _run(
        self, messages: Sequence[Any], partition: int, first: int
    ) -> tuple[Run | None, int | None]:
        """The messages among what a consumer gave; and the partition's end, if it told of it."""
        ended = None
        if any(each.error() is not None for each in messages):
            kept = []
            for each in messages:
                error = each.error()
                if error is None:
                    kept.append(each)
                elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                    ended = each.offset()
                elif error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
                    return self._out_of_range(partition, first)
                else:
                    with self._asking(partition, first):
                        raise self._kafka.KafkaException(error)
            messages = kept
        if not messages:
            return None, ended
        begin, last = messages[0].offset(), messages[-1].offset()
        offsets: Sequence[int] = range(begin, last + 1)
        if len(offsets) != len(messages):
            offsets = [each.offset() for each in messages]
        return Run(offsets, [each.value() for each in messages]), ended

    def _out_of_range(self, partition: int, first: int) -> tuple[None, None]:
        """Go on with the oldest message, where the first ones that are wanted are deleted.

        Raises UnreadableError where that is not the reason.
        """
        with self._asking(partition, first):
            low, high = self._consumer().get_watermark_offsets(
                self._of(partition), timeout=ANSWER_SECONDS
            )
            if not first < low:
                raise UnreadableError(
                    f"{self._where}: partition {partition} has offsets {low} to {high - 1}, and "
                    f"offset {first} is wanted, which it had: its broker has lost records, or the "
                    "topic was made anew"
                )
            self._consumer().assign([self._of(partition, low)])
        return None, None

    # ------------------------------------------------------------ errors

    @contextmanager
    def _asking(self, partition: int | None = None, offset: int | None = None) -> Iterator[None]:
        """Turns errors of brokers into UnreadableError, and into UserError those to be mended."""
        try:
            yield
        except self._kafka.KafkaException as error:
            found = error.args[0]
            self._at = None
            self._consumer().poll(0)  # has librdkafka tell its own
            told = [*self._errors]
            self._errors.clear()
            place = "" if partition is None else f"partition {partition}: "
            place += "" if offset is None else f"offset {offset}: "
            raise self._explained(found, told, f"{self._where}: {place}") from error

    def _explained(self, error: Any, told: Sequence[Any], where: str) -> UserError:
        codes = self._kafka.KafkaError
        by_code = {each.code(): each.str() for each in (error, *told)}
        text = by_code.get(codes._TRANSPORT, error.str())
        for code in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED):
            if code in by_code:
                return UserError(
                    f"{where}the brokers refuse the user ({one_line(by_code[code], 300)}): see "
                    "security.protocol, sasl.mechanism, sasl.username and sasl.password of the URL"
                )
        denied = (codes.TOPIC_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED)
        if error.code() in denied:
            return UserError(
                f"{where}the user may not read topic {self._place.topic} as group "
                f"{self._place.group} ({error.str()}): have it allowed to"
            )
        if codes._SSL in by_code or "SSL" in text:
            text = by_code.get(codes._SSL, text)
            return UserError(
                f"{where}no TLS with the brokers ({one_line(text, 300)}): see security.protocol "
                "and ssl.ca.location of the URL"
            )
        return UnreadableError(
            f"{where}the brokers do not answer ({one_line(text, 300)}): see that they run, and "
            "that their addresses can be reached from here",
            may_be_mistake=True,
        )
