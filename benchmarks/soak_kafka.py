"""A job on a topic of Kafka under kills: each offset must be trained once.

`python -m benchmarks.soak_kafka --records 2000000 --kills 30`; `make soak-kafka` runs it. A mock
cluster keeps a topic of four partitions, to which the records are written while the job trains.
Again and again a worker, a server or the master is killed, when so many records are trained: both
are drawn by the seed. The rows of the model that counts must be what each offset once makes of
them, and of the records that the audit names as repeated, whose push a worker left half done.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from shoal.checkpoints.trained import trained_list
from shoal.data.readers.kafka.segments import Segment
from shoal.files.storage import open_storage
from shoal.tools.chaos.count import Part, compare
from shoal.tools.chaos.count_job import Source
from tests.data.kafka.cluster import PARTITIONS, running
from tests.jobs.running import RunningJob, audited
from tests.waiting import until

ROOT = Path(__file__).parents[1]

USERS = 1000

BATCH = 1024

SERVERS = 2

PORTIONS, PORTION_SECONDS = 400, 0.3
"""In which the records are written, and the pause between two of them."""

IDLE_SECONDS = 40
"""After which the job ends: more than it takes to write a portion on a busy machine."""

TARGETS = (("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1), ("master", 0))

# The mock keeps 5 MB of a partition, as they were sent.
PACKED = {"compression.type": "zstd", "linger.ms": 100}


class Writer(threading.Thread):
    """Writes the records, record n to partition n modulo their number, a portion at a time."""

    def __init__(self, cluster, topic, records):
        super().__init__(daemon=True)
        self._cluster, self._topic, self._records = cluster, topic, records

    def run(self):
        producer = self._cluster.producer(**PACKED)
        edges = np.linspace(0, self._records, PORTIONS + 1).astype(int).tolist()
        for first, end in itertools.pairwise(edges):
            for n in range(first, end):
                value = b'{"record": %d, "user": %d}' % (n, n % USERS)
                producer.produce(self._topic, value=value, partition=n % PARTITIONS)
            assert producer.flush(60) == 0
            time.sleep(PORTION_SECONDS)


def sources_of(job, records):
    """The segments that the job has trained, as sources with the numbers of their records."""
    sources = []
    trained = trained_list(open_storage(str(job.folder.path / "checkpoints"))).sources
    for segment in map(Segment.parse, trained):
        numbers = np.arange(segment.first, segment.end) * PARTITIONS + segment.partition
        sources.append(Source(str(segment), numbers, numbers % USERS))
    found = np.sort(np.concatenate([each.records for each in sources]))
    assert np.array_equal(found, np.arange(records)), "the segments do not have each record once"
    return sources


def problems_of(job, output, records):
    """The reasons why the model is not what each record, and what the audit repeats, make of it."""
    audit = audited(job.folder)
    found = compare(output, [Part(sources_of(job, records), 1, audit)], SERVERS)
    for line in found.lines():
        print(line)
    problems = ["the rows are not as offsets and audit say"] * found.differs
    return problems + ["updates were lost"] * bool(found.lost) + audit["problems"]


def soaked(folder, records, kills, seed):
    """Run the job; returns what it said, its problems and seconds."""
    draw = random.Random(seed)
    began = time.perf_counter()
    done = 0
    with running() as cluster:
        topic = cluster.topic()
        shares = np.linspace(0, records, kills + 1).astype(int).tolist()
        Writer(cluster, topic, records).start()
        with RunningJob(
            "train",
            folder,
            "soak",
            model_zoo=ROOT / "shoal/tools/counting",
            model_def="counts.custom_model",
            training_data=cluster.url(topic, linger=0.5),
            arriving=0.3,
            until_idle=IDLE_SECONDS,
            workers=2,
            servers=SERVERS,
            batch_size=BATCH,
            num_minibatches_per_task=8,
            durability="file",
            relaunch_limit=10 * kills,
            checkpoint_seconds=20,
            output=folder / "out",
        ) as job:
            for number in range(1, kills + 1):
                least = draw.randrange(shares[number - 1], shares[number] + 1)
                job.wait_status(
                    f"{least:,} trained records", lambda s, n=least: s.ledger.trained_once >= n
                )
                who = draw.choice(TARGETS)
                until(f"{who[0]}-{who[1]}", lambda who=who: job.pid(*who))
                job.kill(*who)
                done += 1
                spent = time.perf_counter() - began
                print(f"{spent:6.1f} s: {least:,} trained, {who[0]}-{who[1]} killed", flush=True)
            ended = job.ended()
        said = ended.result or {"state": "none", "ledger": {}, "failure": ended.err}
        problems = [] if said["state"] == "succeeded" else [f"it {said['state']}: {ended.err}"]
        if not problems:
            problems = problems_of(job, folder / "out", records)
        ledger = said["ledger"]
        if ledger and ledger["trained_once"] + ledger["repeated"] != records:
            problems.append(f"the ledger is {ledger}")
    return {
        "records": records,
        "kills": done,
        "seed": seed,
        "seconds": round(time.perf_counter() - began, 1),
        "state": said["state"],
        "ledger": said["ledger"],
        "problems": problems,
    }


@click.command()
@click.option("--records", default=2_000_000)
@click.option("--kills", default=30)
@click.option("--seed", default=1)
def main(records, kills, seed):
    """Run one job, and write build/soak_kafka.json."""
    with tempfile.TemporaryDirectory() as folder:
        report = soaked(Path(folder), records, kills, seed)
    (ROOT / "build/soak_kafka.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    sys.exit(bool(report["problems"]))


if __name__ == "__main__":
    main()
