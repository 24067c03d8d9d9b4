"""Training that ends before its data, decided by the master alone."""

from __future__ import annotations

import math
from types import SimpleNamespace

import keras
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import RemoveCheckpoints, TakeCheckpoint
from shoal.master.job.job import Wait
from shoal.master.journal.events import RecordedJob
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.master.work.evaluation.rules import Best, EarlyStopping, Plateau, UnknownMetricError
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Task
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, config, confirm, register, take, w


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
        ({"maximize": True, "baseline": 0.9, "patience": 2}, [0.5, 0.6, 0.7], None),
        ({"maximize": True, "baseline": 0.9, "patience": 2}, [0.5, 0.6, 0.6], 3),
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


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize(
    "bad", [{"auc": math.nan}, {"auc": math.inf}, {"auc": -math.inf}, {"loss": math.nan}]
)
def test_what_is_not_finite_is_never_the_best(maximize, bad):
    good = {"auc": 0.5, "loss": 0.1}
    better = {"auc": 0.9 if maximize else 0.1, "loss": 0.1}
    found = [EvaluationResult(i, 0, each, 1) for i, each in enumerate((good, better | bad))]
    best = Best("ExportBest", "auc", maximize)
    assert best.position(found) == 0
    assert best.position(found[::-1]) == 1
    assert best.position(found[1:]) is None
    assert EarlyStopping("auc", maximize).reason(found) is not None
    assert Plateau(best, patience=1).reductions(found) == 1


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


def do_one(job, aucs):
    """The worker does its next task; an evaluation takes the first of `aucs`, but not the last.

    Returns the task's kind.
    """
    task = take(job, w(0))
    outcome = {
        pb.EVALUATE: StatesComputed(pb.MetricStates()),
        pb.FINISH_EVALUATION: MetricsComputed({"auc": aucs[0]}),
    }.get(task.kind, Done())
    if task.kind == pb.FINISH_EVALUATION:
        aucs[:] = aucs[1:] or aucs
    job.task_reported(w(0), 0, task.id, outcome, 0, 1.0)
    confirm(job, 1.0)
    return task.kind


def run(job, aucs):
    """One worker does everything; each evaluation gives the next of `aucs`. Returns the kinds."""
    left, kinds = list(aucs), []
    while not job.ended:
        kinds.append(do_one(job, left))
    return kinds


RULE = pb.EarlyStoppingRule(monitor="auc", maximize=True)


def test_a_job_stops_early_evaluates_and_succeeds():
    data = described(early_stopping=[RULE])
    job = begun(data, validation_data="v", epochs=5)
    kinds = run(job, [0.7, 0.6])
    assert job.phases.phase == Phase.SUCCEEDED
    # One evaluation an epoch, as none were asked for; the second has not improved.
    assert [result.epoch for result in job.work.evaluation_results[:2]] == [0, 1]
    assert len(job.work.evaluation_results) == 3
    ledger = job.work.ledger
    assert ledger.total == 300
    assert 120 <= ledger.trained_once == 300 - ledger.pending <= 180
    assert kinds[-2:] == [pb.EVALUATE, pb.FINISH_EVALUATION]
    assert any("training ends early: auc has not improved on 0.7" in m for m in job.record.messages)


def test_a_rule_on_an_unknown_metric_fails_the_job_at_the_first_evaluation():
    rule = pb.EarlyStoppingRule(monitor="acu", maximize=True)
    job = begun(described(early_stopping=[rule]), validation_data="v", epochs=5)
    run(job, [0.7])
    assert job.phases.phase == Phase.FAILED
    assert "monitors 'acu', but the evaluation gives auc" in job.phases.failure.message


def test_max_steps_limits_the_records_of_the_job():
    job = begun(described(max_steps=7), batch_size=5, epochs=5)
    run(job, [0.5])
    assert job.phases.phase == Phase.SUCCEEDED
    assert job.work.ledger.total == job.work.ledger.trained_once == 35


def test_a_worker_may_ask_for_the_end_of_training():
    job = begun(described(), epochs=5)
    task = take(job, w(0))
    job.task_reported(w(0), 0, task.id, Done("a callback set model.stop_training"), 0, 1.0)
    confirm(job, 1.0)
    assert job.phases.phase == Phase.SUCCEEDED
    assert job.work.ledger.trained_once == task.records


NUMBERS = [0.1, 0.2, 0.25, 0.3, 0.5]
VALUES = st.lists(st.sampled_from([*NUMBERS, float("nan")]), max_size=25)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(NUMBERS), max_size=25),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.06]),
)
def test_a_plateau_is_what_keras_takes_for_one(values, maximize, patience, cooldown, delta):
    theirs = keras.callbacks.ReduceLROnPlateau(
        "auc",
        factor=0.5,
        patience=patience,
        mode="max" if maximize else "min",
        min_delta=delta,
        cooldown=cooldown,
        min_lr=0.0,
    )
    theirs.set_model(SimpleNamespace(optimizer=SimpleNamespace(learning_rate=1.0)))
    theirs.on_train_begin()
    for epoch, value in enumerate(values):
        theirs.on_epoch_end(epoch, {"auc": value})
    found = Plateau(Best("ReduceLROnPlateau", "auc", maximize, delta), patience, cooldown)
    assert 0.5 ** found.reductions(results(*values)) == theirs.model.optimizer.learning_rate


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(NUMBERS), max_size=25),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.06]),
    st.sampled_from([None, *NUMBERS]),
)
def test_early_stopping_ends_where_keras_ends(values, maximize, patience, delta, baseline):
    theirs = keras.callbacks.EarlyStopping(
        "auc",
        patience=patience,
        mode="max" if maximize else "min",
        min_delta=delta,
        baseline=baseline,
    )
    theirs.set_model(SimpleNamespace(stop_training=False))
    theirs.on_train_begin()
    ours = EarlyStopping("auc", maximize, delta, patience, baseline)
    for epoch, value in enumerate(values):
        theirs.on_epoch_end(epoch, {"auc": value})
        reason = ours.reason(results(*values[: epoch + 1]))
        assert (reason is not None) == theirs.model.stop_training
        if reason is not None:
            break


@settings(deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([0.0, 0.06]))
def test_the_best_evaluation_is_the_first_that_no_later_one_is_better_than(values, maximize, delta):
    rule = Best("ExportBest", "auc", maximize, delta)
    position = rule.position(results(*values))
    numbers = [value for value in values if value == value]
    assert (position is None) == (not numbers)
    if position is not None:
        assert not any(rule.better(value, values[position]) for value in values[position:])
        before = rule.position(results(*values[:position]))
        assert before is None or rule.better(values[position], values[before])
    assert Best("Checkpoint").position(results(*values)) == (len(values) - 1 if values else None)


BEST = pb.BestRule(monitor="auc", maximize=True)


def exports(kinds):
    """How many evaluations had ended before each export."""
    return [
        kinds[:i].count(pb.FINISH_EVALUATION) for i, kind in enumerate(kinds) if kind == pb.EXPORT
    ]


@pytest.mark.parametrize(
    ("aucs", "expected"),
    [
        ([0.5, 0.7, 0.6], [1, 2]),  # the last ones are not the best
        ([0.5, 0.6, 0.7], [1, 2, 3]),  # the last one is that of the end
        ([0.5], [1]),  # none is better
    ],
)
def test_the_model_of_the_best_evaluation_is_what_output_holds(aucs, expected):
    job = begun(described(export=BEST), validation_data="v", epochs=3, output="o")
    kinds = run(job, aucs)
    assert job.phases.phase == Phase.SUCCEEDED
    assert kinds.count(pb.FINISH_EVALUATION) == 3
    assert exports(kinds) == expected
    assert any("auc 0.5 is the best so far" in text for text in job.record.messages)


def until_export(job, auc):
    """One worker works until it holds an export."""
    while (task := take(job, w(0))).kind != pb.EXPORT:
        outcome = {
            pb.EVALUATE: StatesComputed(pb.MetricStates()),
            pb.FINISH_EVALUATION: MetricsComputed({"auc": auc}),
        }.get(task.kind, Done())
        job.task_reported(w(0), 0, task.id, outcome, 0, 1.0)
    return task


def test_training_ends_only_when_its_exports_have_and_another_worker_takes_them_up():
    job = begun(described(export=BEST), validation_data="v", epochs=2, output="o", workers="2")
    task = until_export(job, 0.5)
    while isinstance(other := job.task_wanted(w(1), 0, 1.0), Task) and other.kind == pb.TRAIN:
        job.task_reported(w(1), 0, other.id, Done(), 0, 1.0)
    assert isinstance(other, Wait)  # all else is done
    assert job.phases.phase == Phase.TRAINING
    job.taken_for_dead(w(0), 0, "silence", 2.0)
    again = take(job, w(1))
    assert (again.kind, again.id != task.id) == (pb.EXPORT, True)
    job.task_reported(w(1), 0, again.id, Done(), 0, 2.0)
    assert job.phases.phase == Phase.EVALUATING


@pytest.mark.parametrize("reports", [True, False])
def test_an_export_under_way_as_the_job_is_stopped_troubles_nobody(reports):
    job = begun(described(export=BEST), validation_data="v", epochs=2, output="o")
    task = until_export(job, 0.5)
    job.stop("asked to", 2.0)
    if reports:
        job.task_reported(w(0), 0, task.id, Done(), 0, 3.0)
    else:
        job.taken_for_dead(w(0), 0, "silence", 3.0)
    assert job.phases.phase == Phase.STOPPED
    assert job.work.follow_ups.exported == (0 if reports else None)


def test_the_rate_is_reduced_for_tasks_given_out_from_then_on():
    rule = pb.PlateauRule(best=BEST, patience=1)
    job = begun(described(plateau=rule), validation_data="v", epochs=5)
    run(job, [0.7, 0.6, 0.5])
    assert job.work.follow_ups.rate_reductions == 4
    said = [text for text in job.record.messages if "the learning rate is reduced" in text]
    assert len(said) == 3  # the last evaluation is after training


def test_a_checkpoint_follows_the_best_evaluation_and_is_kept():
    job = begun(
        described(checkpoint=BEST),
        validation_data="v",
        epochs=6,
        checkpoint_seconds=1000.0,
        keep_checkpoint_max=1,
    )
    aucs, taken, removed = [0.5, 0.9, 0.6, 0.7], [], []
    while not job.ended:
        for order in job.take_instructions():
            if isinstance(order, TakeCheckpoint):
                taken.append(len(job.work.evaluation_results))
                job.checkpoint_taken(Taken(len(taken), 0, 1, 0.1), order.final, 1.0)
            elif isinstance(order, RemoveCheckpoints):
                removed += order.numbers
        if job.ended:
            break
        do_one(job, aucs)
    assert taken[:2] == [1, 2]
    assert removed == [1]
    assert job.checkpoints.kept.best == 2
    assert [each.number for each in job.checkpoints.kept.all] == [2, 3]  # and that of the end


@pytest.mark.parametrize("ends", ["before it", "before it begins", "while it is under way"])
def test_a_new_master_knows_the_checkpoint_of_the_best_evaluation(ends):
    """1. a checkpoint is asked for, begun and taken; 2. an evaluation ends at some time of
    this, 3. another one is taken, of that evaluation if the first was begun too early."""
    fields = {"validation_data": "v", "epochs": 9, "checkpoint_steps": 1}
    events, orders = [], []
    job = RecordedJob(config(**fields), events.append)
    register(job, described(checkpoint=BEST))

    def tick(version):
        job.version_seen(version, 1.0)
        job.tick(1.0)
        orders.extend(each for each in job.take_instructions() if isinstance(each, TakeCheckpoint))

    while (task := take(job, w(0))).kind != pb.FINISH_EVALUATION:
        outcome = StatesComputed(pb.MetricStates()) if task.kind == pb.EVALUATE else Done()
        job.task_reported(w(0), 0, task.id, outcome, 0, 1.0)

    def evaluation_ends(moment):
        if ends == moment:
            job.task_reported(w(0), 0, task.id, MetricsComputed({"auc": 0.9}), 0, 1.0)

    evaluation_ends("before it")
    tick(1)
    evaluation_ends("before it begins")
    job.checkpoint_begun(1.0)
    evaluation_ends("while it is under way")
    job.checkpoint_taken(Taken(1, 1, 1, 0.1), False, 1.0)
    tick(2)
    job.checkpoint_begun(1.0)
    job.checkpoint_taken(Taken(2, 2, 1, 0.1), False, 1.0)
    assert len(orders) == 2
    assert job.checkpoints.kept.best == (2 if ends == "while it is under way" else 1)
    again = RecordedJob(config(**fields), events.append)
    again.replay(list(events))
    assert again.checkpoints.kept.best == job.checkpoints.kept.best
    again.master_restarted(2.0)
    assert again.checkpoints.kept.best == job.checkpoints.kept.best
