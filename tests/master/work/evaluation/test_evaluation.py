"""Evaluation rounds: when they start, exact merging, and retries that count once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shoal.base.slices import KeyedRows
from shoal.master.work.evaluation.evaluation import (
    EvaluationResult,
    Evaluations,
    MergedStates,
    MetricMismatchError,
)
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.metric_states import tell_rows


def states(**metrics: list[list[float]]) -> pb.MetricStates:
    return pb.MetricStates(
        metrics=[
            pb.MetricState(
                name=name,
                variables=[pb.DoubleArray(shape=[len(values)], values=values) for values in arrays],
            )
            for name, arrays in metrics.items()
        ]
    )


def rounds(records: int = 20, every: int = 0) -> Evaluations:
    return Evaluations(
        [Source("v", records)],
        records_per_task=10,
        every_versions=every,
        next_id=itertools.count(1).__next__,
    )


def test_merging_adds_in_float64():
    merged = MergedStates()
    merged.add(states(auc=[[1.0, 2.0**53], [3.0]], loss=[[0.5]]), "worker-0")
    merged.add(states(loss=[[0.25]], auc=[[1.0, 1.0], [4.0]]), "worker-1")
    total = {m.name: [list(v.values) for v in m.variables] for m in merged.to_message().metrics}
    assert total == {"auc": [[2.0, float(np.float64(2.0**53) + 1)], [7.0]], "loss": [[0.75]]}


def test_scalars_keep_their_shape():
    scalar = pb.MetricStates(
        metrics=[pb.MetricState(name="n", variables=[pb.DoubleArray(shape=[], values=[2.0])])]
    )
    merged = MergedStates()
    merged.add(scalar, "worker-0")
    merged.add(scalar, "worker-0")
    variable = merged.to_message().metrics[0].variables[0]
    assert (list(variable.shape), list(variable.values)) == ([], [4.0])


@pytest.mark.parametrize(
    "other", [states(auc=[[1.0]]), states(loss=[[1.0, 2.0]]), states(auc=[[1.0, 2.0], [1.0]])]
)
def test_states_that_do_not_match_name_both_workers(other):
    merged = MergedStates()
    merged.add(states(auc=[[1.0, 2.0]]), "worker-0")
    with pytest.raises(MetricMismatchError, match=r"worker-0 .*auc.*worker-1"):
        merged.add(other, "worker-1")


def sliced(name="s", **rows: list[float]) -> pb.MetricStates:
    """The state of a metric with rows of two numbers by key, beside that of another."""
    message = states(n=[[1.0]])
    kept = KeyedRows(2)
    table = np.array([*rows.values()]).reshape(-1)
    positions = np.arange(table.size, dtype="<u4")
    kept.add([*rows], positions.tobytes(), table.tobytes(), 2)
    tell_rows(message.metrics.add(name=name), kept.sparse())
    return message


def rows_of(message: pb.MetricStates) -> dict[str, list[float]]:
    told, kept = message.metrics[1].rows, KeyedRows()
    kept.add(told.keys, told.positions, told.values, told.width)
    return dict(zip(kept.keys, kept.table.tolist(), strict=True))


def test_rows_of_one_key_add_up_and_others_are_kept():
    merged = MergedStates()
    for message in (
        sliced(a=[1.0, 0.0], b=[2.0, 3.0]),
        sliced(),
        sliced(c=[4.0, 0.0], a=[5.0, 6.0]),
    ):
        merged.add(message, "worker-0")
        again = MergedStates()  # as a state of the job keeps it
        again.__setstate__(merged.__getstate__())
        merged = again
    message = merged.to_message()
    assert rows_of(message) == {"a": [6.0, 6.0], "b": [2.0, 3.0], "c": [4.0, 0.0]}
    assert list(message.metrics[0].variables[0].values) == [3.0]


def test_rows_that_do_not_match_name_the_worker():
    merged = MergedStates()
    merged.add(sliced(a=[1.0, 0.0]), "worker-0")
    damaged = sliced(a=[1.0, 2.0])
    damaged.metrics[1].rows.width = 3
    other = sliced("other", a=[1.0, 2.0])
    for message in (damaged, other, states(n=[[1.0]], s=[[2.0]])):
        with pytest.raises(MetricMismatchError, match="worker-1"):
            merged.add(message, "worker-1")


def test_damaged_states_name_the_worker():
    damaged = pb.MetricStates(
        metrics=[pb.MetricState(name="n", variables=[pb.DoubleArray(shape=[3], values=[2.0])])]
    )
    with pytest.raises(MetricMismatchError, match="worker-0"):
        MergedStates().add(damaged, "worker-0")


def test_a_round_is_every_record_once_then_one_finish():
    evaluations = rounds()
    evaluations.request(version=7, epoch=1)
    first, second = evaluations.take(), evaluations.take()
    assert evaluations.take() is None
    evaluations.states_in(first, states(n=[[10.0]]), "worker-0")
    # The worker with the second task dies: the task comes again, under a new id.
    evaluations.give_back(second)
    again = evaluations.take()
    assert (again.span, again.id == second.id) == (second.span, False)
    with pytest.raises(KeyError):
        evaluations.states_in(second, states(n=[[10.0]]), "worker-1")
    evaluations.states_in(again, states(n=[[10.0]]), "worker-0")
    finish = evaluations.take()
    assert finish.kind == pb.FINISH_EVALUATION
    assert list(finish.states.metrics[0].variables[0].values) == [20.0]
    evaluations.give_back(finish)
    finish = evaluations.take()
    result = evaluations.metrics_in(finish, {"n": 20.0}, version=9, epoch=1)
    assert result == EvaluationResult(version=7, epoch=1, metrics={"n": 20.0}, records=20)
    assert evaluations.idle


def finish_round(evaluations: Evaluations, version: int) -> EvaluationResult:
    while (task := evaluations.take()).kind == pb.EVALUATE:
        evaluations.states_in(task, states(n=[[1.0]]), "worker-0")
    return evaluations.metrics_in(task, {}, version, 0)


def test_rounds_start_when_a_multiple_is_passed_and_never_overlap():
    evaluations = rounds(every=10)
    evaluations.version_reached(9, 0)
    assert evaluations.idle
    evaluations.version_reached(11, 0)
    assert not evaluations.idle
    for version in (12, 21, 25, 31):
        evaluations.version_reached(version, 0)
    assert finish_round(evaluations, 33).version == 11
    # 20 and 30 were passed during the round: one more round, of the model as it is.
    assert finish_round(evaluations, 35).version == 33
    assert evaluations.idle
    evaluations.version_reached(39, 0)
    assert evaluations.idle
