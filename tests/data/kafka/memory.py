"""Messages of partitions in memory, for readers: with gaps and deletions, which a mock has not."""

from shoal.data.readers.kafka.broker import Run
from shoal.data.readers.kafka.place import EARLIEST, LATEST


class MemoryBroker:
    """A Broker. messages: by partition, the value of each offset that has one."""

    def __init__(self, messages, most=7):
        """most: messages of a run."""
        self.messages = messages
        self.oldest = dict.fromkeys(messages, 0)
        self.ends = {p: max(those, default=-1) + 1 for p, those in messages.items()}
        self.fetched = []
        self._most = most

    def delete_before(self, partition, offset):
        """What retention does."""
        self.oldest[partition] = offset
        those = self.messages[partition]
        self.messages[partition] = {at: those[at] for at in those if at >= offset}

    def marks(self):
        return {p: (self.oldest[p], self.ends[p]) for p in self.messages}

    def begins(self, start):
        assert start in (EARLIEST, LATEST)
        return {p: marks[start == LATEST] for p, marks in self.marks().items()}

    def fetch(self, partition, first, end):
        assert type(first) is type(end) is int  # NumPy's are refused by libraries
        self.fetched.append((partition, first, end))
        there = [at for at in sorted(self.messages[partition]) if first <= at < end]
        for begin in range(0, len(there), self._most):
            some = there[begin : begin + self._most]
            yield Run(some, [self.messages[partition][at] for at in some])

    def reopen(self):
        pass
