"""The evaluation of the earlier model: before all training, of all its records, seen by no rule."""

from __future__ import annotations

import pytest

from shoal.master.job.events import TaskReported
from shoal.master.job.instructions import Wait
from shoal.master.result import result_of
from shoal.master.work.failures import Failure
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Span
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, finish_next, take, w
from tests.master.work.test_description import found, work

RULES = pb.TrainingRules(
    early_stopping=[pb.EarlyStoppingRule(monitor="m", maximize=True, patience=1)]
)


def start(*, data=None, **changes):
    data = data or DataDescribed((Source("t", 40),), (Source("v", 20),), rules=RULES)
    fields = {"validation_data": "v", "evaluate_first": True, "continue_from": "/c/checkpoint-1"}
    return begun(data, **(fields | changes))


def test_no_record_is_trained_before_it_has_ended():
    job = start(workers="2")
    assert job.phases.phase.state == "evaluating"
    leased = [take(job, w(0)), take(job, w(1))]
    assert {task.kind for task in leased} == {pb.EVALUATE}
    assert {task.data for task in leased} == {"training"}
    for worker, task in enumerate(leased):
        work(job, task, w(worker))
    finish = take(job, w(0))
    while finish.kind == pb.EVALUATE:
        work(job, finish)
        finish = take(job, w(0))
    assert (finish.kind, finish.data) == (pb.FINISH_EVALUATION, "training")
    assert isinstance(job.task_wanted(w(1), 0, 1.0), Wait)
    work(job, finish)
    (first,) = job.work.first.results
    assert (first.records, first.metrics, first.loss) == (40, {"m": 4.0}, None)
    assert job.phases.phase == Phase.TRAINING
    assert take(job, w(1)).kind == pb.TRAIN


def test_no_rule_sees_it_and_the_result_has_it_by_its_name():
    job = start(evaluation_steps=0)
    kinds = []
    while not job.ended:
        task = take(job, w(0))
        kinds.append((pb.TaskKind.Name(task.kind), task.data))
        of = pb.SliceMetrics(feature=task.data, auc=float("nan"))
        outcome = MetricsComputed({"m": 0.9 if task.data == "training" else 0.8}, slices=(of,))
        if task.kind == pb.FINISH_EVALUATION:
            job.on(TaskReported(w(0), 0, task.id, outcome, 0), 1.0)
        else:
            work(job, task)
        if job.phases.phase not in (Phase.EVALUATING_FIRST, Phase.TRAINING, Phase.EVALUATING):
            break
    assert list(dict.fromkeys(kinds)) == [
        ("EVALUATE", "training"),
        ("FINISH_EVALUATION", "training"),
        ("TRAIN", ""),
        ("EVALUATE", "validation"),
        ("FINISH_EVALUATION", "validation"),
    ]
    result = result_of(job, 2.0)
    assert [each["metrics"] for each in result["evaluations"]] == [{"m": 0.8}]
    assert result["first_evaluation"]["metrics"] == {"m": 0.9}
    assert result["metrics"] == {"m": 0.8}
    assert [(each["feature"], each["auc"]) for each in result["slices"]] == [("validation", None)]


def test_slices_are_those_of_the_earlier_model_where_nothing_else_is_evaluated():
    job = start(validation_data="")
    while not job.work.first.results:
        task = take(job, w(0))
        if task.kind == pb.FINISH_EVALUATION:
            of = (pb.SliceMetrics(feature="f", auc=0.5),)
            job.on(TaskReported(w(0), 0, task.id, MetricsComputed({}, slices=of), 0), 1.0)
        else:
            work(job, task)
    (told,) = result_of(job, 2.0)["slices"]
    assert (told["feature"], told["auc"]) == ("f", 0.5)


@pytest.mark.parametrize("max_steps", [0, 3])
def test_records_that_are_found_later_are_evaluated_too_but_not_those_never_needed(max_steps):
    rules = pb.TrainingRules(max_steps=max_steps)
    sources = found(200)
    job = start(
        data=DataDescribed((Source("a", 20),), more_training=sources, rules=rules),
        validation_data="",
    )
    while not job.work.first.results:
        task = take(job, w(0))
        assert task.kind != pb.TRAIN
        work(job, task)
    (first,) = job.work.first.results
    total = 20 + 200 * 20
    assert first.records == total if not max_steps else 20 <= first.records < total
    assert take(job, w(0)).kind == pb.TRAIN


def test_without_a_record_there_is_none():
    job = start(data=DataDescribed(()), only_new=True, validation_data="")
    assert job.phases.phase not in (Phase.EVALUATING_FIRST, Phase.FAILED)
    assert result_of(job, 1.0)["first_evaluation"] is None


def test_a_bad_record_is_that_of_the_training_data():
    job = start(max_bad_records=1, validation_data="", batch_size=1, num_minibatches_per_task=1)
    task = take(job, w(0))
    wrong = Failure(pb.USER_CODE, "bad", "", Span("t", task.span.start, task.span.start + 1))
    job.on(TaskReported(w(0), 0, task.id, wrong, 0), 1.0)
    for _ in range(100):
        if job.work.first.results:
            break
        task = take(job, w(0))
        if task.kind == pb.EVALUATE and task.span.start == 0:
            job.on(TaskReported(w(0), 0, task.id, wrong, 0), 1.0)
        else:
            work(job, task)
    assert job.work.first.results[0].records == 39
    (bad,) = job.work.failures.bad.to_json()
    assert (bad["data"], bad["record"]) == ("training", 0)


def test_without_an_earlier_model_there_is_none():
    job = start(continue_from="", latest="latest")
    assert job.phases.phase == Phase.TRAINING
    assert finish_next(job, w(0), Done()).kind == pb.TRAIN
