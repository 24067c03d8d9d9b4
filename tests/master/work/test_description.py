"""Sources that are described while the job trains: parts count in turn, and none is left out."""

from __future__ import annotations

import random

import pytest

from shoal.master.job.events import TaskReported
from shoal.master.job.instructions import Wait
from shoal.master.work.description import Description
from shoal.master.work.failures import Failure
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import FoundSource, Requester, Source, Task, TaskIds
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, finish_next, take, w

ANYBODY = Requester()


def found(count, weight=1.0, prefix="s"):
    return tuple(FoundSource(f"{prefix}{i:05}", weight) for i in range(count))


def described(task, records=20):
    return tuple(Source(name, records) for name in task.sources)


@pytest.mark.parametrize("seed", range(5))
def test_parts_count_in_the_order_of_the_sources_whoever_is_faster(seed):
    draw = random.Random(seed)
    sources = found(700)
    description = Description(TaskIds())
    description.add({"training": sources})
    leased, ready = [], []
    while not description.complete:
        task = description.take(ANYBODY)
        if task is not None:
            leased.append(task)
        if task is None or draw.random() < 0.4:
            task = leased.pop(draw.randrange(len(leased)))
            if draw.random() < 0.2:
                description.give_back(task)
                continue
            description.done(task, described(task))
        for kind, part in description.ready():
            assert kind == "training"
            ready.append([source.name for source in part])
    assert [name for part in ready for name in part] == [source.name for source in sources]
    assert [len(part) for part in ready] == [64, 256, 380]
    assert description.described == 700


def test_large_sources_are_described_one_by_one():
    description = Description(TaskIds())
    description.add({"training": found(3, weight=40.0)})
    assert [len(description.take(ANYBODY).sources) for _ in range(3)] == [1, 1, 1]


def start(workers=2, records=20, **changes):
    data = DataDescribed(
        training=(Source("a", records),), more_training=found(200), **changes.pop("data", {})
    )
    return begun(data, workers=str(workers), **changes)


FIRST = w(0)


def work(job, task, worker=FIRST, version=0):
    outcome = Done()
    if task.kind == pb.DESCRIBE_SOURCES:
        outcome = DataDescribed(**{task.data: described(task)})
    elif task.kind == pb.EVALUATE:
        metric = pb.MetricState(name="m", variables=[pb.DoubleArray(shape=[1], values=[1.0])])
        outcome = StatesComputed(pb.MetricStates(metrics=[metric]))
    elif task.kind == pb.FINISH_EVALUATION:
        outcome = MetricsComputed({"m": task.states.metrics[0].variables[0].values[0]})
    job.on(TaskReported(worker, 0, task.id, outcome, version), 1.0)


def run(job, worker=FIRST):
    """The kinds of task that one worker is given, to the end of training."""
    kinds = []
    while job.phases.phase in (Phase.DESCRIBING, Phase.TRAINING, Phase.EVALUATING):
        task = take(job, worker)
        kinds.append(task)
        work(job, task, worker)
    return kinds


def test_training_begins_with_what_is_known_and_goes_on_to_all():
    job = start(workers=1)
    assert job.phases.phase == Phase.TRAINING
    # One worker describes only what it will need soon.
    tasks = run(job)
    assert tasks[0].kind == pb.DESCRIBE_SOURCES  # so few tasks are known
    first = next(i for i, task in enumerate(tasks) if task.kind == pb.TRAIN)
    last = max(i for i, task in enumerate(tasks) if task.kind == pb.DESCRIBE_SOURCES)
    assert first <= 4 < last
    assert sum(task.records for task in tasks) == 20 + 200 * 20
    ledger = job.work.ledger
    assert (ledger.total, ledger.trained_once) == (4020, 4020)


def test_half_of_the_workers_describe_while_others_train():
    job = start(workers=4, records=1000)
    kinds = [take(job, w(i)).kind for i in range(4)]
    assert kinds == [pb.DESCRIBE_SOURCES, pb.DESCRIBE_SOURCES, pb.TRAIN, pb.TRAIN]


def test_a_worker_that_dies_describing_leaves_its_sources_to_another():
    job = start(workers=2)
    task = take(job, w(0))
    assert task.kind == pb.DESCRIBE_SOURCES
    job.work.give_back(task)
    again = job.work.description.take(ANYBODY)
    assert (again.sources, again.id != task.id) == (task.sources, True)


def test_an_evaluation_waits_for_its_data_and_has_all_of_it():
    more = found(40, prefix="v")
    job = start(
        workers=1,
        validation_data="v.csv",
        data={"validation": (Source("v", 10),), "more_validation": more},
    )
    job.work.evaluations.request(0, 0)
    assert job.work.evaluations.take() is None
    tasks = run(job)
    kinds = [task.kind for task in tasks]
    # First of all, its data is described.
    assert [task.data for task in tasks[:3]] == ["validation"] * 3
    records = sum(task.records for task in tasks if task.kind == pb.EVALUATE)
    assert records % (10 + 40 * 20) == 0
    assert records > 0
    assert kinds[-1] == pb.FINISH_EVALUATION


def test_predictions_begin_when_all_is_described():
    data = DataDescribed(prediction=(Source("a", 5),), more_prediction=found(30))
    files = {"training_data": "", "prediction_data": "p", "output": "o", "restore_from": "r"}
    job = begun(data, command="predict", **files)
    positions, spans = [], []
    assert job.phases.phase == Phase.DESCRIBING
    while job.phases.phase in (Phase.DESCRIBING, Phase.PREDICTING):
        task = take(job, w(0))
        if task.kind == pb.PREDICT:
            positions.append(task.position)
            spans.append(task.span)
        work(job, task)
    assert positions == [0, *range(5, 605, 10)]
    assert [span.source for span in spans[1::2]] == [source.name for source in found(30)]


def test_data_without_a_record_anywhere_is_told_when_all_is_described():
    job = begun(DataDescribed(training=(Source("a", 0),), more_training=found(20)))
    for _ in range(2):
        task = take(job, w(0))
        sources = tuple(Source(name, 0) for name in task.sources)
        job.on(TaskReported(w(0), 0, task.id, DataDescribed(training=sources), 0), 1.0)
    assert job.phases.phase == Phase.FAILED
    assert "--training-data train.csv holds no records" in job.phases.failure.message


def test_a_source_that_cannot_be_described_fails_the_job_by_its_reason():
    job = start(workers=1)
    task = take(job, w(0))
    job.on(TaskReported(w(0), 0, task.id, Failure.of_user("s00003 is damaged"), 0), 1.0)
    assert job.phases.phase == Phase.FAILED
    assert job.phases.failure.message == "s00003 is damaged"


def test_max_steps_leave_out_what_need_not_be_described():
    job = start(workers=1, data={"rules": pb.TrainingRules(max_steps=3)})
    assert not job.work.description.waiting
    assert [task.kind for task in run(job)] == [pb.TRAIN] * 2
    assert job.work.ledger.trained_once == 15


def resumed(job, again):
    """The job begins again, and its data is described again; returns why it cannot."""
    job.work.resume([], 0, 1, 0)
    notes = []
    return job.work.describe(again, notes.append), notes


def test_a_resumed_job_goes_on_describing_and_tells_what_has_changed():
    job = start(workers=2)
    took = take(job, w(0))
    same = DataDescribed(training=(Source("a", 20),), more_training=found(200))
    assert resumed(job, same) == (None, [])
    assert job.work.description.take(ANYBODY).sources == took.sources
    more = DataDescribed(training=(Source("a", 20),), more_training=found(202))
    for _ in range(20):
        while (task := job.work.description.take(ANYBODY)) is not None:
            data = DataDescribed(training=described(task))
            assert job.work.sources_described(task, data, 0) is None
    failure, notes = resumed(job, more)
    assert failure is None
    (note,) = notes
    assert "2 files, such as s00200, are new, and not read by this job" in note
    less = DataDescribed(training=(Source("a", 20),), more_training=found(199))
    failure, _ = resumed(job, less)
    assert "has changed since the job began: s00199 is not there any more" in failure.message
    # A topic that has grown is cut otherwise, and has what it had.
    moved = DataDescribed(training=(Source("b", 20),), more_training=found(199), token="moved")
    assert resumed(job, moved) == (None, [])
    other = DataDescribed(training=(Source("a", 21),), more_training=found(200))
    failure, _ = resumed(job, other)
    assert "a has 21 records in 0 groups, and had 20 in 0" in failure.message


def test_a_worker_waits_while_all_that_is_left_is_being_described():
    job = begun(DataDescribed(training=(Source("a", 10),), more_training=found(4)), workers="2")
    task = take(job, w(0))
    assert task.kind == pb.DESCRIBE_SOURCES
    finish_next(job, w(1), Done())
    assert isinstance(job.task_wanted(w(1), 0, 1.0), Wait)
    work(job, task)
    assert isinstance(take(job, w(1)), Task)
