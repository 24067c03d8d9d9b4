"""The course of a job, told by its journal, by statuses, and by metrics.csv."""

import pytest

from shoal.proto import shoal_pb2 as pb
from shoal.tools.dashboard.course import MOST_POINTS, Course, Curve, rates
from shoal.tools.dashboard.facts import Rates


def status(seconds, trained=0, **fields):
    ledger = pb.Ledger(total=100, trained_once=trained, pending=100 - trained)
    return pb.JobStatus(state="training", seconds=seconds, ledger=ledger, **fields)


def worker(task=0, incarnation=0, deaths=0, state="alive"):
    view = pb.WorkerView(worker=0, state=state, incarnation=incarnation, deaths=deaths)
    if task:
        span = pb.Range(source="s", start=10, end=50)
        view.task.CopyFrom(pb.Task(id=task, kind=pb.TRAIN, range=span))
    return view


def test_statuses_alone_tell_lanes_evaluations_and_messages():
    course = Course()
    evaluation = pb.EvaluationResult(version=9, epoch=0, metrics={"auc": 0.75}, records=5)
    course.seen(status(1.0, workers=[worker(4)], servers=[pb.ServerView(state="alive")]))
    course.seen(status(2.0, workers=[worker(5)], last_evaluation=evaluation))
    died = worker(state="dead", deaths=1)
    course.seen(status(3.0, workers=[died], messages=["2.5 s: worker-0 died"]))
    course.seen(status(4.0, messages=["2.5 s: worker-0 died", "a note"]))
    told = course.to_json()
    lane, server = told["lanes"]
    assert lane["spans"] == [[1.0, 2.0, "TRAIN", 1, 40], [2.0, 3.0, "TRAIN", 1, 40]]
    assert lane["marks"] == [(3.0, "death")]
    assert server["spans"][0][2] == "alive"
    (evaluated,) = told["evaluations"]
    assert (evaluated["t"], evaluated["metrics"]) == (2.0, {"auc": 0.75})
    assert course.messages == [
        {"t": 2.5, "text": "worker-0 died"},
        {"t": None, "text": "a note"},
    ]


def test_the_journal_tells_it_all_anew_but_the_loss():
    course = Course()
    course.seen(status(5.0, 10, loss=0.5, has_loss=True, workers=[worker(4)]))
    course = course.anew()
    now = {"state": "alive", "incarnation": 0, "deaths": 0, "kind": "TRAIN", "records": 40}
    course.told({"t": 1.25, "process": "worker-0", "task": 1, **now})
    course.told({"t": 2.0, "ledger": [10, 0, 0, 90], "version": 3})
    course.seen(status(6.0, 20, loss=0.25, has_loss=True, workers=[worker(9)]))
    told = course.to_json()
    assert told["loss"] == [[5.0, 6.0], [0.5, 0.25]]
    assert told["lanes"][0]["spans"] == [[1.25, 6.0, "TRAIN", 1, 40]]  # not the status's task
    assert told["ledger"][:2] == [[2.0, 6.0], [10, 20]]


def test_the_loss_of_before_the_first_status_is_from_the_file():
    course = Course()
    course.seen(status(30.0, loss=0.25, has_loss=True))
    lines = [
        "time,seconds,state,loss,val_auc",
        "t,0.1,starting,,",
        "t,10.0,training,0.9,",
        "t,20.0,training,0.5,0.7",
        "t,20.5,evaluating,0.4,0.7",
        "t,40.0,training,0.1,",
        "t,50",
    ]
    course.losses(lines)
    course.losses(lines)  # the file is read again and again
    assert course.to_json()["loss"] == [[10.0, 20.0, 30.0], [0.9, 0.5, 0.25]]


def test_a_metric_that_is_no_number_is_none():
    course = Course()
    course.ended([{"version": 1, "epoch": 0, "records": 3, "metrics": {"auc": float("nan")}}], [])
    assert course.to_json()["evaluations"][0]["metrics"] == {"auc": None}


def test_what_processes_were_at_lasts_to_the_end_of_the_job():
    course = Course().anew()
    now = {"incarnation": 0, "deaths": 0, "task": 0, "kind": "", "records": 0}
    course.told({"t": 1.0, "process": "ps-0", "state": "alive", **now})
    course.told({"t": 4.0, "ledger": [10, 0, 0, 90], "version": 3})
    assert course.last() == {
        "seconds": 4.0,
        "ledger": {"total": 100, "trained_once": 10, "repeated": 0, "failed": 0, "pending": 90},
    }
    course.ended([], [])  # it was killed
    assert course.to_json()["lanes"][0]["spans"][0][:2] == [1.0, 4.0]
    course = Course().anew()
    course.told({"t": 1.0, "process": "ps-0", "state": "alive", **now})
    course.ended([], [], 9.0)
    course.seen(status(10.0))
    assert course.to_json()["lanes"][0]["spans"][0][:2] == [1.0, 9.0]


def test_speeds_are_counted_over_some_seconds_and_anew_for_a_new_process():
    rates = Rates()
    assert rates.of("ps-0", 1.0, 7, {"pulls": 10.0}) == {}
    assert rates.of("ps-0", 2.0, 7, {"pulls": 14.0}) == {"pulls": 4.0}
    assert rates.of("ps-0", 6.0, 7, {"pulls": 20.0}) == {"pulls": 2.0}
    assert rates.of("ps-0", 7.0, 7, {"pulls": 30.0}) == {"pulls": 10.0}
    assert rates.of("ps-0", 8.0, 8, {"pulls": 1.0}) == {}
    assert rates.of("ps-0", 9.0, 8, {"pulls": 2.0}) == {"pulls": 1.0}


def test_rates_are_those_of_the_count():
    assert rates([(0.0, 0.0)]) == []
    found = rates([(0.0, 0.0), (10.0, 1000.0), (20.0, 1000.0), (30.0, 900.0), (40.0, 2900.0)])
    by_time = dict(found)
    assert by_time[10.0] == pytest.approx(100.0)
    assert by_time[20.0] == by_time[30.0] == 0.0  # of a loss, no negative one
    assert by_time[40.0] == pytest.approx(200.0)


def test_a_long_curve_keeps_its_ends_and_its_shape():
    curve = Curve()
    for second in range(100_000):
        curve.add(float(second), second * 2.0)
    points = curve.thinned()
    assert len(points) <= MOST_POINTS
    assert points[0] == (0.0, (0.0,))
    assert points[-1] == (99_999.0, (199_998.0,))
    assert all(values[0] == 2 * at for at, values in points)
    assert len(points) > MOST_POINTS / 4
