"""Training that ends before its data, decided by the master alone."""

from __future__ import annotations

import pytest

from shoal.master.evaluation import EvaluationResult
from shoal.master.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.phases import Phase
from shoal.master.rules import EarlyStopping, UnknownMetricError
from shoal.master.work import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, take, w


def results(*values, epochs=None):
    epochs = epochs or [0] * len(values)
    return [
        EvaluationResult(i, epoch, {"auc": value}, 1)
        for i, (value, epoch) in enumerate(zip(values, epochs, strict=True))
    ]


@pytest.mark.parametrize(
    ("rule", "values", "stopped_at"),
    [
        ({"maximize": True}, [0.5, 0.6, 0.55], 3),
        ({"maximize": True}, [0.5, 0.6, 0.7], None),
        ({"maximize": False}, [0.5, 0.6], 2),
        ({"maximize": True, "patience": 2}, [0.5, 0.6, 0.55, 0.61, 0.6, 0.5], 6),
        ({"maximize": True, "min_delta": 0.05}, [0.5, 0.54], 2),
        ({"maximize": True, "min_delta": 0.05}, [0.5, 0.56], None),
        ({"maximize": True, "baseline": 0.9, "patience": 2}, [0.5, 0.6, 0.7], 2),
        ({"maximize": True}, [float("nan"), float("nan")], 2),
    ],
)
def test_early_stopping_counts_as_keras_does(rule, values, stopped_at):
    found = EarlyStopping("auc", **rule)
    ends = [
        count
        for count in range(1, len(values) + 1)
        if found.reason(results(*values[:count])) is not None
    ]
    assert (ends or [None])[0] == stopped_at


def test_evaluations_of_earlier_epochs_do_not_count():
    found = EarlyStopping("auc", maximize=True, start_from_epoch=1)
    assert found.reason(results(0.9, 0.5, epochs=[0, 0])) is None
    assert found.reason(results(0.9, 0.5, 0.6, epochs=[0, 1, 1])) is None
    assert found.reason(results(0.9, 0.5, 0.4, epochs=[0, 1, 1])) is not None


def test_a_metric_that_is_not_there_is_named():
    with pytest.raises(UnknownMetricError, match="monitors 'acu', but the evaluation gives auc"):
        EarlyStopping("acu", maximize=True).reason(results(0.5))


def described(**rules):
    return DataDescribed(
        training=(Source("t", 60),), validation=(Source("v", 10),), rules=pb.TrainingRules(**rules)
    )


def run(job, aucs):
    """One worker does everything; each evaluation gives the next of `aucs`. Returns the kinds."""
    kinds = []
    while not job.ended:
        task = take(job, w(0))
        kinds.append(task.kind)
        outcome = {
            pb.EVALUATE: StatesComputed(pb.MetricStates()),
            pb.FINISH_EVALUATION: MetricsComputed({"auc": aucs[0]}),
        }.get(task.kind, Done())
        if task.kind == pb.FINISH_EVALUATION:
            aucs = aucs[1:] or aucs
        job.task_reported(w(0), 0, task.id, outcome, 0, 1.0)
    return kinds


RULE = pb.EarlyStoppingRule(monitor="auc", maximize=True)


def test_a_job_stops_early_evaluates_and_succeeds():
    data = described(early_stopping=[RULE])
    job = begun(data, validation_data="v", num_epochs=5)
    kinds = run(job, [0.7, 0.6])
    assert job.flow.phase == Phase.SUCCEEDED
    # One evaluation an epoch, as none were asked for; the second has not improved.
    assert [result.epoch for result in job.flow.evaluation_results[:2]] == [0, 1]
    assert len(job.flow.evaluation_results) == 3
    ledger = job.flow.ledger
    assert ledger.total == 300
    assert 120 <= ledger.trained_once == 300 - ledger.pending <= 180
    assert kinds[-2:] == [pb.EVALUATE, pb.FINISH_EVALUATION]
    assert any("training ends early: auc has not improved on 0.7" in m for m in job.record.messages)


def test_a_rule_on_an_unknown_metric_fails_the_job_at_the_first_evaluation():
    rule = pb.EarlyStoppingRule(monitor="acu", maximize=True)
    job = begun(described(early_stopping=[rule]), validation_data="v", num_epochs=5)
    run(job, [0.7])
    assert job.flow.phase == Phase.FAILED
    assert "monitors 'acu', but the evaluation gives auc" in job.flow.failure.message


def test_max_steps_limits_the_records_of_the_job():
    job = begun(described(max_steps=7), minibatch_size=5, num_epochs=5)
    run(job, [0.5])
    assert job.flow.phase == Phase.SUCCEEDED
    assert job.flow.ledger.total == job.flow.ledger.trained_once == 35


def test_a_worker_may_ask_for_the_end_of_training():
    job = begun(described(), num_epochs=5)
    task = take(job, w(0))
    job.task_reported(w(0), 0, task.id, Done("a callback set model.stop_training"), 0, 1.0)
    assert job.flow.phase == Phase.SUCCEEDED
    assert job.flow.ledger.trained_once == task.records
