"""Windows of predictions in training: what counts in them, when they end, and who sees them."""

import itertools

import pytest

from shoal.master.job.events import TaskReported
from shoal.master.result import result_of
from shoal.master.work.evaluation.evaluation import MetricMismatchError
from shoal.master.work.evaluation.progressive import PROGRESSIVE, Windows
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source, Span, Task
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, take, w


def states(value, name="m"):
    variable = pb.DoubleArray(shape=[1], values=[value])
    return pb.MetricStates(metrics=[pb.MetricState(name=name, variables=[variable])])


def sum_of(task):
    return task.states.metrics[0].variables[0].values[0]


def trained(number=1, **changes):
    return Task(number, pb.TRAIN, Span("t", 0, 10), **changes)


def windows(window=20):
    return Windows(window, itertools.count(1).__next__)


def add(made, value=1.0, records=10, version=5, **changes):
    made.add(trained(**changes), states(value), records, "worker-0", version, 0)


def ended(made, value=0.5, version=9):
    """The numbers of the window whose states a worker has."""
    task = made.take()
    assert (task.kind, task.data) == (pb.FINISH_EVALUATION, PROGRESSIVE)
    return task, made.metrics_in(task, {"m": value}, version, 0)


def test_a_window_ends_with_the_report_that_makes_it_full():
    made = windows()
    add(made, 1.0)
    assert made.idle
    assert made.take() is None
    add(made, 2.0, version=7)
    assert not made.idle
    task, result = ended(made)
    assert sum_of(task) == 3.0
    assert (result.records, result.version) == (20, 7)
    assert made.results == made.course == [result]
    assert made.idle


def test_what_an_earlier_lease_may_have_trained_does_not_count():
    made = windows()
    add(made)
    add(made, again=True)
    add(made, trained_before=1)
    made.request(5, 0)
    task, result = ended(made)
    assert (sum_of(task), result.records) == (1.0, 10)


def test_while_one_is_turned_into_numbers_the_next_is_gathered():
    made = windows()
    add(made, 1.0, records=20)
    add(made, 2.0, records=25)
    add(made, 4.0, records=3)
    task, first = ended(made)
    assert (sum_of(task), first.records) == (1.0, 20)
    task, second = ended(made)
    assert (sum_of(task), second.records, second.version) == (6.0, 28, 9)
    assert made.idle


@pytest.mark.parametrize(("records", "counts"), [(9, False), (10, True)])
def test_the_last_window_has_half_of_the_records_or_none_counts(records, counts):
    made = windows()
    add(made, records=20)
    ended(made)
    add(made, records=records)
    made.request(8, 0)
    assert made.idle is not counts
    assert (made.take() is not None) is counts


def test_states_that_do_not_match_are_refused():
    made = windows()
    add(made)
    with pytest.raises(MetricMismatchError):
        made.add(trained(), states(1.0, "other"), 10, "worker-1", 5, 0)


def test_a_task_that_its_worker_did_not_finish_goes_to_another():
    made = windows()
    add(made, records=20)
    made.give_back(made.take())
    task, _ = ended(made)
    assert sum_of(task) == 1.0


def test_after_a_resumption_nothing_of_the_lost_model_is_told():
    made = windows()
    for version in (4, 8):
        add(made, records=20, version=version)
        ended(made)
    add(made, 3.0)
    made.resume(6)
    assert [each.version for each in made.results] == [4]
    add(made, 5.0, records=20)
    task, _ = ended(made)
    assert sum_of(task) == 5.0


# ------------------------------------------------------------ in a job


def start(window=100, **changes):
    return begun(
        DataDescribed((Source("t", 40),)),
        progressive_steps=2,
        progressive_window=window,
        **changes,
    )


def report(job, task, worker=0, now=1.0):
    """A task is done; half of its records were predicted."""
    outcome = Done(progressive=states(float(task.records)), records=task.records // 2)
    if task.kind == pb.FINISH_EVALUATION:
        outcome = MetricsComputed({"m": sum_of(task)})
    job.on(TaskReported(w(worker), 0, task.id, outcome, task.id), now)


def test_the_last_window_ends_with_training_and_is_the_last_evaluation():
    job = start(workers="2")
    while job.phases.phase is Phase.TRAINING:
        report(job, take(job, w(0)))
    finish = take(job, w(1))
    report(job, finish, worker=1)
    result = result_of(job, 2.0)
    (evaluation,) = result["evaluations"]
    assert (evaluation["records"], evaluation["metrics"]) == (20, {"m": 40.0})
    assert result["metrics"] == {"m": 40.0}


def test_a_window_that_is_full_comes_before_the_next_task():
    job = start(window=10)
    tasks = [take(job, w(0))]
    while (task := tasks[-1]).kind == pb.TRAIN:
        report(job, task)
        tasks.append(take(job, w(0)))
    assert sum(each.records for each in tasks) == 20
    assert sum_of(tasks[-1]) == 20.0
    report(job, tasks[-1])
    assert take(job, w(0)).kind == pb.TRAIN


def test_a_report_that_is_told_again_counts_once():
    job = start()
    task = take(job, w(0))
    for _ in range(2):
        report(job, task)
    while job.phases.phase is Phase.TRAINING:
        report(job, take(job, w(0)))
    report(job, take(job, w(0)))
    assert job.work.evaluation_results[0].records == 20
