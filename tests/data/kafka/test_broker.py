"""The calls to a consumer of a partition with gaps, which the mock cluster has not."""

import confluent_kafka
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.data.readers.kafka.broker import KafkaBroker
from shoal.data.readers.kafka.place import KafkaPlace
from tests.examples import examples


class Message:
    def __init__(self, offset, error=None):
        self._offset, self._error = offset, error

    def offset(self):
        return self._offset

    def error(self):
        return self._error

    def value(self):
        return str(self._offset).encode() if self._error is None else b"an error's words"


class Consumer:
    """A consumer as librdkafka's: it goes on from message to message, and tells of the end once.

    together: whether the end comes in one answer with the last messages.
    """

    def __init__(self, offsets, end, most, together):
        self._offsets, self._end, self._most, self._together = offsets, end, most, together

    def assign(self, places):
        (place,) = places
        self._next, self._told = place.offset, False

    def consume(self, count, timeout):
        left = [at for at in self._offsets if at >= self._next]
        taken = left[: min(count, self._most)]
        answer = [Message(at) for at in taken]
        if taken:
            self._next = taken[-1] + 1
        room = len(answer) < count and (self._together or not answer)
        if len(taken) == len(left) and room and not self._told:
            self._told = True
            kind = confluent_kafka.KafkaError._PARTITION_EOF
            answer.append(Message(self._end, confluent_kafka.KafkaError(kind)))
        assert answer, "nothing comes any more: this would wait in vain"
        return answer


# The consumer has gone beyond the end of the second range when that is read again.
@example(missing={7}, most=40, together=False, ranges=[(0, 5), (5, 5), (5, 5)])
@settings(max_examples=examples(200), deadline=None)
@given(
    missing=st.sets(st.integers(0, 29)),
    most=st.integers(1, 40),
    together=st.booleans(),
    # Few places, so that ranges follow one another, and are read again.
    ranges=st.lists(
        st.tuples(st.sampled_from((0, 5, 10, 20)), st.sampled_from((5, 10))), min_size=1, max_size=8
    ),
)
def test_a_range_has_the_offsets_that_there_are(missing, most, together, ranges):
    broker = KafkaBroker(KafkaPlace.parse("kafka://h:1/t", "--training-data"), "--training-data")
    there = [at for at in range(30) if at not in missing]
    broker._made = Consumer(there, 30, most, together)
    for first, count in ranges:
        end = min(first + count, 30)
        runs = list(broker.fetch(0, first, end))
        found = [int(at) for run in runs for at in run.offsets]
        assert found == [at for at in there if first <= at < end]
        values = [value for run in runs for value in run.values]
        assert values == [str(at).encode() for at in found]
