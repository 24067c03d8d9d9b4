"""Records a second of the reader of topics, against confluent-kafka and json.loads.

`python -m benchmarks.kafka` writes messages to a mock cluster on this machine, then reads them in
turns: shoal in tasks as a worker does, to Arrow columns; a plain consumer with `json.loads`; and
that consumer alone. Counted is the processor time of this process, librdkafka's threads included,
as other work on the machine does not change it much. The medians of the rounds count, and those of
their ratios.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import confluent_kafka
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from shoal.data.opening import open_reader
from tests.data.kafka.cluster import running

RECORDS = 200_000
PARTITIONS = 4
TASK = 4096
ROUNDS = 5


def values():
    """Clicks as JSON: ids, a text, numbers; about 120 bytes each."""
    draw = np.random.default_rng(0)
    users, items = draw.integers(0, 10**6, RECORDS), draw.integers(0, 10**4, RECORDS)
    prices = draw.random(RECORDS)
    for i in range(RECORDS):
        yield json.dumps(
            {
                "user": int(users[i]),
                "item": int(items[i]),
                "country": ("de", "fr", "us")[i % 3],
                "device": "phone",
                "price": round(float(prices[i]), 2),
                "hour": i % 24,
                "label": i % 2,
            }
        ).encode()


def by_shoal(cluster, topic):
    reader = open_reader(cluster.url(topic, rows=TASK), "--training-data")
    names = reader.names()
    reader.schema()
    count = 0
    for name in names:
        for batch in reader.read(name, 0, reader.describe(name).records):
            count += batch.num_rows
    return count


def plain(cluster, topic, parse):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.brokers, "group.id": "bench", "enable.auto.commit": False}
    )
    count = 0
    for partition in range(PARTITIONS):
        place = confluent_kafka.TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=10)
        consumer.assign([place])
        seen = 0
        while seen < end:
            for message in consumer.consume(min(8192, end - seen), timeout=1):
                parse(message.value())
                seen += 1
        count += seen
    consumer.close()
    return count


def timed(work):
    began, wall = time.process_time(), time.perf_counter()
    count = work()
    assert count == RECORDS, count
    return count / (time.process_time() - began), count / (time.perf_counter() - wall)


def main():
    with running() as cluster:
        topic = cluster.topic()
        made = [*values()]
        for partition in range(PARTITIONS):
            own = made[partition::PARTITIONS]
            # The mock keeps 5 MB of a partition, as they were sent.
            options = {"compression.type": "zstd", "linger.ms": 50}
            cluster.write(topic, partition, own, **options)
        size = sum(map(len, made)) / len(made)
        ways = {
            "shoal": lambda: by_shoal(cluster, topic),
            "consume + json.loads": lambda: plain(cluster, topic, json.loads),
            "consume": lambda: plain(cluster, topic, bytes),
        }
        found = {name: [] for name in ways}
        for work in ways.values():
            work()  # warm
        for _ in range(ROUNDS):
            for name, work in ways.items():
                found[name].append(timed(work))
        said = f"{RECORDS:,} JSON records of {size:.0f} bytes, {PARTITIONS} partitions"
        print(f"{said}, tasks of {TASK}")
        for name, rates in found.items():
            cpu, wall = (statistics.median(each) for each in zip(*rates, strict=True))
            print(f"  {name:22} {cpu:12,.0f} records/s of a core {wall:12,.0f} records/s")
        ratios = [
            ours[0] / theirs[0]
            for ours, theirs in zip(found["shoal"], found["consume + json.loads"], strict=True)
        ]
        print(f"  shoal / (consume + json.loads), of a core: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
