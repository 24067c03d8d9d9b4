"""The reader of topics, on a mock cluster, and on messages in memory for what that has not."""

import itertools
import json
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.opening import open_reader
from shoal.data.places.index_store import IndexStore, Known
from shoal.data.readers.kafka.kafka_reader import KafkaReader
from shoal.errors import (
    GoneError,
    UnreadableError,
    UserError,
    holds_secret,
    without_credentials,
)
from tests.data.kafka.memory import MemoryBroker
from tests.data.readers.test_examples import example
from tests.examples import examples

FLAG = "--training-data"


def numbered(count, first=0):
    return [
        b'{"id": %d, "half": %s}' % (i, str(i / 2).encode()) for i in range(first, first + count)
    ]


def ids_of(reader, source, start=0, end=None):
    end = reader.describe(source).records if end is None else end
    return [i for batch in reader.read(source, start, end) for i in batch["id"].to_pylist()]


def in_memory(messages, **options):
    broker = MemoryBroker(
        {
            p: dict(enumerate(each)) if isinstance(each, list) else each
            for p, each in messages.items()
        }
    )
    query = "&".join(f"{key}={value}" for key, value in options.items())
    now = [1000.0]
    reader = KafkaReader(f"kafka://h:9092/t?{query}", flag=FLAG, broker=broker, now=lambda: now[0])
    reader.clock = now
    return broker, reader


# ---------------------------------------------------------------- a cluster


def test_a_topic_is_read_by_partition_and_offset(cluster):
    topic = cluster.topic([numbered(2500), numbered(10), [], numbered(700)])
    reader = open_reader(cluster.url(topic, rows=1000), FLAG)
    names = [f"{topic}/{each}" for each in ("0@0-1000", "0@1000-2000", "0@2000-2500", "1@0-10")]
    assert reader.names() == [*names, f"{topic}/2@0-0", f"{topic}/3@0-700"]
    assert reader.schema() == pa.schema({"id": pa.int64(), "half": pa.float64()})
    assert ids_of(reader, names[1]) == list(range(1000, 2000))
    # Backwards, on from there, another partition, and the same again.
    assert ids_of(reader, names[0], 990, 1000) == list(range(990, 1000))
    assert ids_of(reader, names[1], 0, 5) == list(range(1000, 1005))
    assert ids_of(reader, names[3]) == list(range(10))
    assert ids_of(reader, names[1], 5, 9) == list(range(1005, 1009))
    assert ids_of(reader, f"{topic}/2@0-0") == []
    assert reader.place(names[1], 7) == f"offset 1007 of partition 0 of topic {topic}"
    # The first listing holds: what comes later is of another one.
    cluster.write(topic, 1, numbered(5, first=10))
    assert reader.names() == [*names, f"{topic}/2@0-0", f"{topic}/3@0-700"]
    assert sum(each.records for each in reader.sources()) == 3210
    with pytest.raises(UserError, match="records 5 to 11 were asked for, but it holds 10"):
        list(reader.read(names[3], 5, 11))


def test_records_that_come_are_told_once(cluster):
    topic = cluster.topic([numbered(25), numbered(3)])
    reader = open_reader(cluster.url(topic, rows=10, linger=0.2), FLAG)
    found, token = reader.arrivals("")
    expected = [f"{topic}/{each}" for each in ("0@0-10", "0@10-20", "1@0-0", "2@0-0", "3@0-0")]
    assert found == expected
    cluster.write(topic, 3, numbered(12))
    names, more = [], []
    while sum(reader.describe(name).records for name in names) < 40 - 20:
        more, token = reader.arrivals(token)
        names += more
    assert sorted(names) == [
        f"{topic}/{each}" for each in ("0@20-25", "1@0-3", "3@0-10", "3@10-12")
    ]
    assert reader.arrivals(token) == ([], token)
    assert ids_of(reader, min(names)) == list(range(20, 25))
    # Another process goes on with the token.
    other = open_reader(cluster.url(topic, rows=10, linger=0), FLAG)
    cluster.write(topic, 1, numbered(1, first=3))
    assert other.arrivals(token)[0] == [f"{topic}/1@3-4"]


def test_a_job_begins_where_it_is_told_to(cluster):
    topic = cluster.topic([numbered(5), numbered(4)])
    latest = open_reader(cluster.url(topic, start="latest"), FLAG)
    found, _ = latest.arrivals("")
    assert found == [f"{topic}/{each}" for each in ("0@5-5", "1@4-4", "2@0-0", "3@0-0")]
    # Columns are those of the messages before.
    assert latest.schema().names == ["id", "half"]
    cluster.write(topic, 1, numbered(2, first=4))
    assert latest.names()[1] == f"{topic}/1@4-4" or latest.names()[1] == f"{topic}/1@4-6"
    cluster.commit(topic, "others", {0: 3, 1: 6})
    committed = open_reader(cluster.url(topic, start="committed", group="others"), FLAG)
    expected = [f"{topic}/{each}" for each in ("0@3-5", "1@6-6", "2@0-0", "3@0-0")]
    assert committed.names() == expected
    # The mock tells no offset of a time: as where all messages are older.
    timed = open_reader(cluster.url(topic, start="2026-01-31T08:00:00+01:00"), FLAG)
    assert timed.names()[:2] == [f"{topic}/0@5-5", f"{topic}/1@6-6"]
    with pytest.raises(UserError, match=f"{topic}: there is no record where the job begins"):
        timed.sources()


def test_what_retention_has_deleted_is_told_and_the_rest_is_read(cluster):
    # More than the 5 MB that the mock keeps of a partition.
    filler = "x" * 1000
    values = [json.dumps({"id": i, "text": filler}).encode() for i in range(8000)]
    topic = cluster.topic([values])
    url = cluster.url(topic, rows=4000)
    reader = open_reader(url, FLAG)
    low = int(re.search(r"/0@(\d+)-", reader.names()[0])[1])
    assert 2000 < low < 8000
    half_gone = f"{topic}/0@{low - 100}-{low + 100}"
    gone = (
        rf"offset {low - 100} of partition 0 of topic {topic} is deleted .* up to offset {low - 1}:"
    )
    told = gone + f".* records from offset {low} on.*max-bad-records"
    with pytest.raises(GoneError, match=told) as raised:
        ids_of(reader, half_gone)
    assert raised.value.records == 100
    assert ids_of(reader, half_gone, 100) == list(range(low, low + 100))
    told = r"offset 3 of .* is deleted by now, and so are .* offset 9:"
    with pytest.raises(GoneError, match=told) as raised:
        ids_of(reader, f"{topic}/0@0-10", 3)
    assert raised.value.records == 7
    # Deleted before it was listed: it is listed all the same, and so counted.
    other = open_reader(cluster.url(topic, rows=4000, linger=0), FLAG)
    other.behind([f"{topic}/{p}@0-{end}" for p, end in ((0, 50), (1, 0), (2, 0), (3, 0))])
    assert other.arrivals("")[0] == [f"{topic}/0@50-4050", f"{topic}/0@4050-8000"]
    cluster.commit(topic, "slow", {0: 10})
    with pytest.raises(UserError, match=rf"offset 10 of partition 0, and the oldest .* {low}: the"):
        open_reader(cluster.url(topic, start="committed", group="slow"), FLAG).names()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"security__protocol": "ssl"}, "no TLS with the brokers"),
        (
            {
                "security__protocol": "sasl_plaintext",
                "sasl__mechanism": "PLAIN",
                "sasl__username": "reader",
                "sasl__password": "${KAFKA_WORD}",
            },
            "the brokers refuse the user",
        ),
        ({"sasl__mechanisn": "PLAIN"}, "No such configuration property"),
        ({"ssl__ca__location": "/no/such/file"}, None),
    ],
)
def test_what_is_wrong_with_a_connection_is_told(cluster, monkeypatch, options, expected):
    monkeypatch.setattr("shoal.data.readers.kafka.broker.ANSWER_SECONDS", 1.0)
    monkeypatch.setenv("KAFKA_WORD", "hunter2+&#")
    topic = cluster.topic([numbered(1)])
    reader = open_reader(cluster.url(topic, **options), FLAG)
    if expected is None:
        assert reader.names()  # an option of TLS without TLS
        return
    with pytest.raises(UserError, match=expected) as caught:
        reader.names()
    assert str(caught.value).startswith(f"{FLAG}: kafka://{cluster.brokers}/{topic}: ")
    assert "hunter2" not in str(caught.value)
    assert not isinstance(caught.value, UnreadableError)


def test_topics_and_brokers_that_are_not_there_are_told(cluster, monkeypatch):
    topic = cluster.topic()
    with pytest.raises(UserError, match=f"no topic {topic}0 .did you mean {topic}"):
        open_reader(cluster.url(topic + "0"), FLAG).names()
    with pytest.raises(UserError, match="holds no message that tells the columns"):
        open_reader(cluster.url(topic), FLAG).schema()
    given = open_reader(cluster.url(topic, types="id:int64,tags:list<string>"), FLAG).schema()
    assert given == pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string())})
    monkeypatch.setattr("shoal.data.readers.kafka.broker.ANSWER_SECONDS", 1.0)
    away = open_reader("kafka://127.0.0.1:1/t", FLAG)
    with pytest.raises(
        UnreadableError, match=r"127.0.0.1:1/t: .*do not answer .*refused"
    ) as caught:
        away.names()
    assert caught.value.may_be_mistake


def test_a_reader_goes_on_after_an_error(cluster, monkeypatch):
    topic = cluster.topic([numbered(50)])
    reader = open_reader(cluster.url(topic, rows=10), FLAG)
    cluster.write(topic, 0, [b"nonsense"])
    with pytest.raises(UserError, match=f"offset 50 of partition 0 of topic {topic}: not a JSON"):
        ids_of(reader, f"{topic}/0@45-51")
    assert ids_of(reader, f"{topic}/0@45-51", 0, 5) == [45, 46, 47, 48, 49]
    reader.reopen()
    assert ids_of(reader, f"{topic}/0@10-20") == list(range(10, 20))


def test_a_range_that_is_left_half_read_does_not_shift_the_next(cluster):
    topic = cluster.topic([numbered(20_000)])
    reader = open_reader(cluster.url(topic), FLAG)
    chunks = reader.read(f"{topic}/0@0-16384", 0, 16384)
    first = next(chunks)
    chunks.close()
    count = len(first)
    assert ids_of(reader, f"{topic}/0@0-16384", count, count + 3) == list(range(count, count + 3))
    assert ids_of(reader, f"{topic}/0@16384-20000", 0, 3) == [16384, 16385, 16386]


# ---------------------------------------------------------------- messages


def stream(**columns):
    batch = pa.record_batch({name: pa.array([value]) for name, value in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


FORMATS = {
    "json": ({}, lambda i, name: json.dumps({"id": i, "name": name}, indent=1).encode()),
    "csv": ({"columns": "id,name"}, lambda i, name: f'{i},"{name}"'.encode()),
    "example": ({}, lambda i, name: example(id=[i], name=[name.encode()])),
    "arrow": ({}, lambda i, name: stream(id=i, name=name)),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_gives_its_columns_and_names_the_bad_message(kind):
    options, made = FORMATS[kind]
    values = [made(i, f"n,{i}\n") for i in range(40)]
    broker, reader = in_memory({0: values}, format=kind, **options)
    rows = [row for b in reader.read("t/0@0-40", 3, 38) for row in b.to_pylist()]
    assert [row["id"] for row in rows] == list(range(3, 38))
    assert rows[2]["name"] in ("n,5\n", b"n,5\n")
    two = [values[0] + b"\n" + values[1]] if kind != "example" else []  # which is one to protobuf
    for bad in (b"", None, b"\x00\x00\x00\x00\x01", b" ", *two):
        broker.messages[0][17] = bad
        with pytest.raises(UserError, match="t: offset 17 of partition 0 of topic t: ") as caught:
            ids_of(reader, "t/0@0-40")
        assert str(caught.value).count(FLAG) == 1
        assert ids_of(reader, "t/0@0-40", 18, 40) == list(range(18, 40))


@pytest.mark.parametrize(
    ("kind", "pair"),
    [
        # As many records as messages all the same: none is taken for another's.
        ("json", [b'{"id": 1, "half": [1', b'2]} {"id": 3}']),
        ("json", [b'{"id": 1} {"id": 2}', b"  "]),
        ("csv", [b'1,"a', b'b"']),
        ("csv", [b"1,2\n3,4", b"\n"]),
    ],
)
def test_no_message_ends_what_another_begins(kind, pair):
    options = {"columns": "id,half", "types": "id:int64,half:string"} if kind == "csv" else {}
    good = [b"1,2"] * 3 if kind == "csv" else numbered(3)
    _, reader = in_memory({0: [*good, *pair, *good]}, format=kind, **options)
    with pytest.raises(UserError, match=r"offset [34] of partition 0"):
        list(reader.read("t/0@0-8", 0, 8))
    with pytest.raises(UserError, match=r"offset [34] of partition 0"):
        list(reader.read("t/0@0-8", 3, 5))


def test_the_first_of_several_bad_messages_is_told_and_those_before_are_read():
    values = numbered(30)
    values[21], values[25], values[28] = b'{"id": "x"}', None, b"nonsense"
    _, reader = in_memory({0: values})
    read = []

    def take():
        for batch in reader.read("t/0@0-30", 0, 30):
            read.extend(batch["id"].to_pylist())

    with pytest.raises(UserError, match=r"offset 21 of .* is of type string here.*&types=NAME:"):
        take()
    assert read == list(range(21))


def test_types_are_those_of_the_messages_that_can_be_read():
    values = [None, b"nonsense", b'{"id": 1}', b'{"id": 18446744073709551615}', b"[]", b'{"x": []}']
    _, reader = in_memory({0: values, 1: [b'{"id": 3, "late": "2026-01-01T00:00:00"}']})
    assert reader.schema() == pa.schema(
        {"id": pa.uint64(), "x": pa.list_(pa.string()), "late": pa.string()}
    )
    assert reader.head(2) == (
        "t/0@2-4",
        [
            pa.record_batch(
                {
                    "id": pa.array([1, 2**64 - 1], pa.uint64()),
                    "x": pa.nulls(2, pa.list_(pa.string())),
                    "late": pa.nulls(2, pa.string()),
                }
            )
        ],
    )
    _, reader = in_memory({0: [b'{"id": 36893488147419103232}']})
    assert "&types=id:string" in reader.doubts()[0]
    _, reader = in_memory({0: [b'{"id": 1}'], 1: [b'{"id": "a"}']})
    assert "types=NAME:TYPE" in str(reader.faults()["id"])
    _, reader = in_memory({0: [b'{"id": 1}']}, types="id:double,late:string")
    assert reader.schema() == pa.schema({"id": pa.float64(), "late": pa.string()})


# ---------------------------------------------------------------- offsets that are not there


def with_gaps(count=60, missing=(0, 7, 8, 20, 59)):
    return {0: {i: v for i, v in enumerate(numbered(count)) if i not in missing}}


def test_an_offset_without_a_record_is_an_error_that_says_what_helps():
    broker, reader = in_memory(with_gaps())
    broker.ends[0] = 60
    for first, missing in ((0, 0), (1, 7), (9, 20), (21, 59)):
        what = rf"offset {missing} of partition 0 of topic t has no record: .* &gaps=count"
        with pytest.raises(UserError, match=what):
            ids_of(reader, "t/0@0-60", first, 60)
    assert ids_of(reader, "t/0@0-60", 9, 20) == list(range(9, 20))


@settings(max_examples=examples(60), deadline=None)
@given(
    missing=st.sets(st.integers(0, 39)),
    low=st.integers(0, 45),
    cuts=st.sets(st.integers(0, 40), max_size=4),
)
def test_gaps_that_are_counted_leave_each_record_once(missing, low, cuts):
    broker, reader = in_memory(with_gaps(40, missing), gaps="count", types="id:int64")
    broker.ends[0] = 45
    reader.narrow(["id"])
    broker.delete_before(0, low)
    name = "t/0@0-40"
    # What is deleted may have been records: it counts as if it had.
    offsets = [i for i in range(40) if i < low or i not in missing]
    assert reader.describe(name).records == len(offsets)
    assert all(reader.place(name, i).startswith(f"offset {at} of") for i, at in enumerate(offsets))
    deleted = sum(at < low for at in offsets)
    edges = sorted(
        {deleted, len(offsets), *(each for each in cuts if deleted < each < len(offsets))}
    )
    found = [ids_of(reader, name, *pair) for pair in itertools.pairwise(edges)]
    assert [*itertools.chain(*found)] == offsets[deleted:]
    if deleted:
        with pytest.raises(UserError, match=f"offset {deleted - 1} .*is deleted by now"):
            ids_of(reader, name, deleted - 1, len(offsets))


def test_what_was_counted_is_told_to_other_workers_and_held_against_the_topic():
    broker, describing = in_memory(with_gaps(), gaps="count")
    store = IndexStore()
    describing.share(store)
    with store.keeping():
        told = store.told(describing.describe("t/0@0-60"))
    assert told.source.records == 55
    other = KafkaReader("kafka://h:9092/t?gaps=count", flag=FLAG, broker=broker)
    other.share(IndexStore({"t/0@0-60": told}.get))
    broker.fetched.clear()
    assert ids_of(other, "t/0@0-60", 5, 8) == [6, 9, 10]
    assert (0, 0, 60) not in broker.fetched
    del broker.messages[0][9]
    with pytest.raises(UserError, match=r"offset 9 of .* is deleted, after it was counted"):
        ids_of(other, "t/0@0-60", 5, 8)
    broker.messages[0][8] = broker.messages[0][9] = numbered(1)[0]
    with pytest.raises(UserError, match=r"offset 8 of .* has a record, and had none"):
        ids_of(other, "t/0@0-60", 5, 8)
    assert isinstance(told, Known)


# ---------------------------------------------------------------- jobs that follow one another


def test_a_job_goes_on_behind_the_segments_of_earlier_ones():
    broker, reader = in_memory({0: numbered(30), 1: numbered(5), 2: numbered(2)}, rows=10, linger=0)
    reader.behind(["t/0@0-10", "t/0@10-20", "t/1@5-5", "other/2@0-2", "a.csv"])
    expected = ["t/0@20-30", "t/2@0-2"]
    assert reader.arrivals("")[0] == expected
    assert [*reader.weights()] == expected
    assert reader.names() == ["t/0@20-30", "t/1@5-5", "t/2@0-2"]
    reader.behind(["t/0@0-30", "t/1@0-5", "t/2@0-2"])
    assert reader.weights() == {}
    assert reader.names() == ["t/0@30-30", "t/1@5-5", "t/2@2-2"]
    broker.messages[0], broker.ends[0] = {}, 3
    with pytest.raises(
        UserError, match=r"kafka://h:9092/t: partition 0 .* was read up to offset 30"
    ):
        reader.arrivals("")


def test_a_segment_waits_no_longer_than_linger():
    _, reader = in_memory({0: numbered(5)}, rows=10, linger=2)
    found, token = reader.arrivals("")
    assert found == ["t/0@0-0"]
    reader.clock[0] += 1.9
    # A token of a listing without names need not be kept.
    assert reader.arrivals(token)[0] == []
    reader.clock[0] += 0.2
    assert reader.arrivals(token)[0] == ["t/0@0-5"]


# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("kafka://h/t", "'h' is no broker"),
        ("kafka://h:1,,g:2/t", "'' is no broker"),
        ("kafka://h:1/", "'' is no name of a topic"),
        ("kafka://h:1/a/b", "'a/b' is no name of a topic"),
        ("kafka://me:word@h:1/t", "user and password do not stand before the host"),
        ("kafka://h:1/t#format=csv", "is no name of a topic"),
        ("kafka://h:1/t?rows=1#format=csv", "behind"),
        ("kafka://h:1/t?formt=csv", "no option 'formt' .did you mean format"),
        ("kafka://h:1/t?bootstrap.servers=g:1", "no option 'bootstrap.servers'"),
        ("kafka://h:1/t?auto.offset.reset=latest", "no option 'auto.offset.reset'"),
        ("kafka://h:1/t?format=jsn", "no format 'jsn' .did you mean json"),
        ("kafka://h:1/t?rows=0", "rows must be a whole number from 1 on"),
        ("kafka://h:1/t?rows=1.5", "rows must be a whole number from 1 on"),
        ("kafka://h:1/t?linger=-1", "linger must be a number of seconds from 0 on"),
        ("kafka://h:1/t?linger=nan", "linger must be a number of seconds from 0 on"),
        ("kafka://h:1/t?gaps=skip", "gaps must be count"),
        ("kafka://h:1/t?start=yesterday", "start must be earliest, latest, committed or a time"),
        ("kafka://h:1/t?start=committed", "needs &group=NAME"),
        ("kafka://h:1/t?start=", "start has no value"),
        ("kafka://h:1/t?rows=1&rows=2", "rows is given twice"),
        ("kafka://h:1/t?format=csv", "give &columns=NAME,NAME"),
        ("kafka://h:1/t?format=csv&columns=a,a", "names a column twice"),
        ("kafka://h:1/t?columns=a", "columns is for format=csv"),
        ("kafka://h:1/t?types=a", "'a' must be NAME:TYPE"),
        ("kafka://h:1/t?types=a:number", "'a:number' must be NAME:TYPE"),
        ("kafka://h:1/t?format=arrow&types=a:int64", "types is for format=json and csv"),
        ("kafka://h:1/t?ssl.key.pem=x", "give the path of a file: ssl.key.location"),
        ("kafka://h:1/t?sasl.password=${NO_SUCH_WORD}", "variable NO_SUCH_WORD is not set"),
    ],
)
def test_a_url_of_another_form_is_refused(url, expected):
    with pytest.raises(UserError, match=re.escape(FLAG) + ".*" + expected):
        open_reader(url, FLAG)


def test_a_password_in_a_url_is_no_part_of_errors():
    url = "kafka://h:1/t?sasl.password=hunter2&strat=1"
    with pytest.raises(UserError) as caught:
        open_reader(url, FLAG)
    assert "hunter2" not in str(caught.value)
    assert without_credentials(url) == "kafka://h:1/t?sasl.password=***&strat=1"
    assert holds_secret(url)
    assert not holds_secret(url.replace("hunter2", "${KAFKA_WORD}"))


def test_a_missing_library_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(UserError, match=r"pip install 'shoal\[kafka\]'"):
        open_reader("kafka://h:1/t", FLAG)


def test_columns_that_are_filled_are_those_of_a_topic(cluster):
    from shoal.config.groups.data_format import DataFormat

    topic = cluster.topic([[b'{"id": 1}', b'{"id": 2, "age": 3}']])
    said = DataFormat(fill=(("age", "0"),))
    reader = open_reader(cluster.url(topic, linger=0), FLAG, data_format=said)
    names, _ = reader.arrivals("")
    assert names[0] == f"{topic}/0@0-2"
    (batch,) = reader.read(names[0], 0, 2)
    assert batch.to_pydict() == {"id": [1, 2], "age": [0, 3]}
    reader.behind([f"{topic}/0@0-1"])
    assert next(iter(reader.weights())) == f"{topic}/0@1-2"
