"""A Kafka cluster for tests: librdkafka's own mock, in a process of its own.

`python -m tests.data.kafka.cluster` serves one until it is killed; its records are gone with it. It
keeps the newest 5 MB of a partition, which is its retention.
"""

import contextlib
import itertools
import subprocess
import sys
import time

import confluent_kafka

PARTITIONS = 4
"""Of a topic, unless told otherwise."""

_NUMBERS = itertools.count()


class Cluster:
    """The brokers at an address."""

    def __init__(self, brokers):
        self.brokers = brokers

    def url(self, topic, **options):
        """The URL of a topic for a reader. options: behind the question mark."""
        query = "&".join(f"{key.replace('__', '.')}={value}" for key, value in options.items())
        return f"kafka://{self.brokers}/{topic}" + (f"?{query}" if query else "")

    def topic(self, partitions=None):
        """The name of a new topic. partitions: messages of each, to begin with; none where None."""
        name = f"topic-{next(_NUMBERS)}"
        self.producer().list_topics(name, timeout=10)
        for partition, values in enumerate(partitions or ()):
            self.write(name, partition, values)
        return name

    def producer(self, **options):
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self.brokers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                **options,
            }
        )

    def write(self, topic, partition, values, **options):
        """Write messages to a partition; returns once they have offsets."""
        producer = self.producer(**options)
        for value in values:
            while True:
                try:
                    producer.produce(topic, value=value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    def commit(self, topic, group, offsets):
        """Commit offsets of a group. offsets: by partition."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.brokers, "group.id": group})
        places = [confluent_kafka.TopicPartition(topic, *each) for each in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()


@contextlib.contextmanager
def running():
    """A cluster of one broker, until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True)
    try:
        yield Cluster(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main():
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0}
    )
    brokers = producer.list_topics(timeout=30).brokers.values()
    print(",".join(f"{each.host}:{each.port}" for each in brokers), flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
