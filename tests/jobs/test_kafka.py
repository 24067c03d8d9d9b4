"""Jobs on topics of Kafka: each offset is trained once, whoever is killed, and over legs."""

import threading

import pytest

from shoal.master.job.events import MasterRestarted
from tests.data.kafka import cluster as clusters
from tests.jobs.results import PIPELINED, SERIAL, applied
from tests.jobs.running import RunningJob, audited, run
from tests.jobs.test_arriving import trained
from tests.waiting import until

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("own")]


class Writer:
    """Writes ids from 0 on, in turn to the partitions of a topic, in a thread until it is left.

    There are older records in two partitions.
    """

    def __init__(self, cluster, seconds=0.1, records=20):
        self.topic = cluster.topic([[b'{"id": -1}'] * 7, [], [b'{"id": -2}']])
        self.count = 0
        self._cluster, self._seconds, self._records = cluster, seconds, records
        self._producer = cluster.producer()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def add(self):
        """Some more records, which have offsets when this returns."""
        for _ in range(self._records):
            value = b'{"id": %d}' % self.count
            self._producer.produce(self.topic, value=value, partition=self.count % 4)
            self.count += 1
        assert self._producer.flush(30) == 0

    def _run(self):
        while not self._done.wait(self._seconds):
            self.add()

    def __enter__(self):
        return self

    def begin(self):
        self._thread.start()

    def __exit__(self, *_):
        self.end()

    def end(self):
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()


@pytest.fixture(scope="module")
def cluster():
    with clusters.running() as found:
        yield found


def test_each_offset_is_trained_once_whoever_is_killed_and_over_legs(tmp_path, cluster):
    with Writer(cluster) as writer:
        fields = {
            "training_data": cluster.url(writer.topic, start="latest", rows=24, linger=0.3),
            "arriving": 0.3,
            "latest": tmp_path / "latest",
            "only_new": True,
            "num_minibatches_per_task": 2,
            "workers": "2",
            # A worker that dies between two servers has some records repeated.
            "servers": "1",
            "durability": "file",
            "relaunch_limit": 9,
            **PIPELINED,
        }
        with RunningJob("train", tmp_path, "monday", leg=8, **fields) as job:
            job.wait_status("that it waits", lambda status: "new files" in status.waits_for)
            writer.begin()
            for number, who in enumerate((("worker", 0), ("ps", 0), ("master", 0))):
                job.wait_status(f"records before kill {number}", trained(40 + 120 * number))
                job.kill(*who)
            until("a new master", lambda: MasterRestarted() in job.events())
            ended = job.ended().succeeded()
        first = ended.ledger["trained_once"]
        assert not audited(job.folder)["problems"]
        until("records that the first job did not see", lambda: writer.count > first)
        more = {"until_idle": 1.5, "output": tmp_path / "out"}
        with RunningJob("train", tmp_path, "tuesday", **fields, **more) as job:
            job.wait_status("records of the second leg", trained(60))
            job.kill("worker", 1)
            writer.end()
            ended = job.ended().succeeded()
    assert first + ended.ledger["trained_once"] == writer.count
    assert ended.ledger["failed"] == 0
    total, counts = applied(tmp_path / "out")
    assert total == [writer.count] * 2
    assert counts == dict.fromkeys(range(writer.count), 1)


def test_a_job_without_arriving_trains_what_there_is_and_leaves_bad_messages_out(tmp_path, cluster):
    values = [b'{"id": %d}' % i for i in range(200)]
    values[57], values[133] = b"nonsense", None
    topic = cluster.topic([values[:100], values[100:]])
    ended = run(
        "train",
        tmp_path,
        "bad",
        training_data=cluster.url(topic, rows=64),
        max_bad_records=2,
        output=tmp_path / "out",
        **PIPELINED,
    )
    assert ended.code == 0, ended.out + ended.err
    assert {each["place"] for each in ended.result["bad_records"]} == {
        f"offset 57 of partition 0 of topic {topic}",
        f"offset 33 of partition 1 of topic {topic}",
    }
    assert ended.ledger["trained_once"] == 198
    assert ended.ledger["failed"] == 2
    total, counts = applied(tmp_path / "out")
    assert counts == dict.fromkeys(sorted({*range(200)} - {57, 133}), 1)
    assert total == [198] * len(total)


def test_records_that_retention_deletes_fail_by_offset_and_the_others_are_trained(
    tmp_path, cluster
):
    topic = cluster.topic()

    def write(first, end):
        # Each batch of 5 is deleted as a whole, beyond 5 MB.
        for begin in range(first, end, 5):
            ids, pad = range(begin, begin + 5), b"x" * 100_000
            values = [b'{"id": %d, "pad": "%s"}' % (i, pad) for i in ids]
            cluster.write(topic, 0, values, **{"batch.num.messages": 5, "linger.ms": 1000})

    write(0, 45)
    with RunningJob(
        "train",
        tmp_path,
        "gone",
        environment={"GATES": "step-1"},
        training_data=cluster.url(topic, rows=8),
        max_bad_records=10,
        output=tmp_path / "out",
        **SERIAL,
    ) as job:
        job.at_gate("step-1")
        write(45, 55)
        # What librdkafka has fetched goes with the process.
        job.kill("worker", 0)
        job.open("step-1")
        ended = job.ended()
    assert ended.code == 0, ended.out + ended.err
    (bad,) = ended.result["bad_records"]
    low = int(bad["error"].rpartition("from offset ")[2].partition(" ")[0])
    assert (bad["place"], bad["records"]) == (f"offset 0 of partition 0 of topic {topic}", low)
    assert f"all up to offset {low - 1}" in bad["error"]
    assert 0 < low < 8  # part of a segment
    assert ended.ledger["failed"] == low
    assert ended.ledger["trained_once"] == 45 - low
    _, counts = applied(tmp_path / "out")
    assert counts == dict.fromkeys(range(low, 45), 1)
