"""The reader's interface over a broker that is killed, and comes back with what it had: NATS."""

import random
from collections import Counter
from functools import partial

import pytest

from shoal.data.readers.kafka.kafka_reader import KafkaReader
from shoal.errors import UnreadableError, UserError

jetstream = pytest.importorskip("tests.data.kafka.jetstream", reason="it needs nats-py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        jetstream.SERVER is None, reason="it needs a NATS server: apt-get install nats-server"
    ),
]

FLAG = "--training-data"

STREAMS = ("clicks-0", "clicks-1")


@pytest.fixture
def server(tmp_path):
    found = jetstream.Server(tmp_path / "store")
    found.start()
    yield found
    found.kill()


@pytest.fixture
def clients(server):
    made = []

    def client(kind):
        made.append(kind(server.url, STREAMS))
        return made[-1]

    yield client
    for each in made:
        each.close()


def reader_of(broker, query=""):
    return KafkaReader(f"kafka://h:9092/clicks?linger=0&rows=60{query}", flag=FLAG, broker=broker)


def test_no_record_is_lost_or_read_twice_where_the_broker_is_killed(server, clients):
    draw = random.Random(7)
    writer = clients(jetstream.Client)
    writer.make()
    broker = clients(jetstream.JetStreamBroker)
    reader = reader_of(broker, "&types=id:int64")
    acknowledged, kills, token, read, names = [set(), set()], 0, "", Counter(), []

    def killed_and_started():
        nonlocal kills
        server.kill()
        kills += 1
        server.start()

    def patiently(work):
        while True:
            try:
                return work()
            except UnreadableError:
                reader.reopen()

    for round_ in range(4):
        for partition in (0, 1):
            # Those that were not acknowledged are written again.
            left = list(range(1000 * round_, 1000 * round_ + draw.randint(50, 400)))
            while left:
                if draw.random() < 0.4:
                    writer.write(partition, left[: len(left) // 2])  # acknowledged or not
                    killed_and_started()
                done = writer.write(partition, left)
                acknowledged[partition].update(done)
                left = left[len(done) :]
        if round_ % 2:
            killed_and_started()
        new, token = patiently(partial(reader.arrivals, token))
        names += new
        for name in new:
            count, at = reader.describe(name).records, 0
            partition = int(name.split("@")[0][-1])
            while at < count:
                chunks = reader.read(name, at, count)
                try:
                    for batch in chunks:
                        ids = batch["id"].to_pylist()
                        read.update((partition, each) for each in ids)
                        at += len(ids)
                        if draw.random() < 0.1:
                            killed_and_started()
                except UnreadableError:
                    reader.reopen()
    assert kills >= 4
    expected = {(p, each) for p in (0, 1) for each in acknowledged[p]}
    assert read == Counter(dict.fromkeys(expected, 1))
    assert len(set(names)) == len(names)


def test_deleted_messages_are_told_as_those_of_a_topic(server, clients):
    writer = clients(jetstream.Client)
    writer.make()
    assert writer.write(0, range(100)) == list(range(100))
    reader = reader_of(clients(jetstream.JetStreamBroker))
    writer.run(lambda js: js.delete_msg(STREAMS[0], 31))
    with pytest.raises(UserError, match="offset 30 of partition 0 of topic clicks has no record"):
        list(reader.read("clicks/0@0-60", 20, 60))
    counting = reader_of(clients(jetstream.JetStreamBroker), "&gaps=count")
    assert counting.describe("clicks/0@0-60").records == 59
    assert [i for b in counting.read("clicks/0@0-60", 29, 32) for i in b["id"].to_pylist()] == [
        29,
        31,
        32,
    ]
    writer.run(lambda js: js.purge_stream(STREAMS[0], seq=51))
    with pytest.raises(UserError, match=r"offset 20 .* is deleted by now, .* from offset 50 on"):
        list(reader.read("clicks/0@0-60", 20, 60))
    assert [i for b in reader.read("clicks/0@0-60", 50, 60) for i in b["id"].to_pylist()] == list(
        range(50, 60)
    )
