"""Progressive metrics of whole jobs, beside those of what each step is known to have predicted."""

import json
import random

import pytest

from shoal.master.job.events import TaskReported
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.reading import read
from shoal.master.work.outcomes import Done
from shoal.proto import shoal_pb2 as pb
from tests.jobs.running import RunningJob

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.job

RECORDS, EVERY = 2000, 2


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    chance = random.Random(3)
    lines = []
    for record in range(RECORDS):
        user, item = chance.randrange(30), chance.randrange(12)
        label = chance.random() < (0.9 if user % 3 == item % 3 else 0.1)
        lines.append(f"{record},{user},{item},{label:d}\n")
    path = tmp_path_factory.mktemp("stream") / "clicks.csv"
    path.write_text("record,user,item,label\n" + "".join(lines))
    return path


def trained(stream, folder, *, killed=0, **more):
    """The ended job, and the notes of its steps that count, {record: (label, prediction)}."""
    notes = folder / "notes"
    notes.mkdir()
    with RunningJob(
        *("train", folder, "stream"),
        environment={"NOTES": str(notes), "KILLED": str(killed)},
        model_def="noted_torch.custom_model",
        engine="torch",
        training_data=stream,
        workers="2",
        servers="2",
        batch_size=25,
        num_minibatches_per_task=8,
        progressive_steps=EVERY,
        **more,
    ) as job:
        ended = job.ended()
    counted = []
    for path in notes.glob("*.notes"):
        counted += [json.loads(line) for line in path.read_text().splitlines()][EVERY - 1 :: EVERY]
    # A record is noted twice where the one that predicted it first died before it told.
    found = {record: rest for _, rows in sorted(counted) for record, *rest in rows}
    return ended, job.folder, found


def tasks_done(folder):
    """The records of each training task that was done, in the order of the reports."""
    config, entries = read(folder.journal)
    job = RecordedJob(config, lambda _: None)
    for entry in entries:
        if isinstance(event := entry.event, TaskReported) and isinstance(event.outcome, Done):
            task = job.members.workers[event.worker].holds(event.task_id)
            if task is not None and task.kind == pb.TRAIN:
                yield task
        job.replay([entry])


def recomputed(rows):
    import shoal.torch

    labels, predictions = torch.tensor(rows, dtype=torch.float32).T
    metric = shoal.torch.metrics.AUC()
    metric.update_state(labels, predictions)
    return float(metric.result())


def test_each_window_has_the_metrics_of_what_was_predicted_in_it(stream, tmp_path):
    ended, folder, noted = trained(stream, tmp_path, progressive_window=300)
    evaluations = ended.succeeded().result["evaluations"]
    expected, rows = [], []
    for task in tasks_done(folder):
        rows += [noted[each] for each in range(task.span.start, task.span.end) if each in noted]
        if len(rows) >= 300:
            expected.append(rows)
            rows = []
    expected += [rows] if len(rows) >= 150 else []
    assert len(expected) >= 3
    assert [each["records"] for each in evaluations] == list(map(len, expected))
    found = [each["metrics"]["auc"] for each in evaluations]
    assert found == pytest.approx(list(map(recomputed, expected)), abs=1e-9)
    assert ended.result["metrics"]["auc"] == found[-1]
    versions = [each["version"] for each in evaluations]
    assert versions == sorted(set(versions))


def test_of_a_killed_worker_what_it_did_not_report_does_not_count(stream, tmp_path):
    ended, folder, noted = trained(stream, tmp_path, killed=11)
    ended.succeeded()
    assert ended.result["workers"]["deaths"] == 1
    rows, of_tasks = [], 0
    for task in tasks_done(folder):
        of_tasks += task.records
        if not task.trained_before:
            rows += [noted[each] for each in range(task.span.start, task.span.end) if each in noted]
    (evaluation,) = ended.result["evaluations"]
    assert of_tasks < RECORDS  # what the dead one had trained of its last task is in no report
    assert evaluation["records"] == len(rows)
    assert evaluation["metrics"]["auc"] == pytest.approx(recomputed(rows), abs=1e-9)
