"""Sources that come: each counts once, when it is whole, whoever lists them and whoever dies."""

from __future__ import annotations

import random

import pytest

from shoal.master.job.events import TaskAheadWanted, TaskReported
from shoal.master.job.instructions import Finished, Wait
from shoal.master.job.view.waiting import FRUITLESS, waits_for
from shoal.master.work.arrivals import Arrivals
from shoal.master.work.failures import Failure
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.phases import Phase
from shoal.master.work.units import ANYBODY, FoundSource, Source, TaskIds
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, confirm, exited, finish_next, take, w


def found(name, stamp=""):
    return FoundSource(name, 1.0, stamp)


@pytest.mark.parametrize("seed", range(8))
def test_each_source_counts_once_and_only_when_two_listings_agree(seed):
    """Files grow for a while; workers list what they see, some of them all that they know again."""
    draw = random.Random(seed)
    arrivals = Arrivals(1.0, 0.0, 0.0, TaskIds())
    arrivals.known(["f0"], "")
    sizes = {"f0": 1}
    before, counted, now = {}, [], 0.0
    for _ in range(300):
        now += draw.choice((0.3, 1.0))
        if draw.random() < 0.3:
            sizes[f"f{len(sizes)}"] = 1
        if draw.random() < 0.5:
            sizes[draw.choice([*sizes])] += 1
        task = arrivals.take(ANYBODY, now)
        if task is None:
            continue
        if draw.random() < 0.2:
            arrivals.give_back(task)  # and so is given out again at once
            assert not arrivals.due(now)
            continue
        seen = {name: str(size) for name, size in sizes.items()}
        new, _ = arrivals.listed(task, [found(*each) for each in seen.items()], "", now)
        for each in new:
            assert before[each.name] == each.stamp
        counted += [each.name for each in new]
        before = seen
    assert len(counted) == len(set(counted)) > 20
    assert "f0" not in counted


def test_a_source_that_changes_after_it_counted_is_told_once():
    arrivals = Arrivals(1.0, 0.0, 0.0, TaskIds())
    arrivals.known(["old"], "")
    told = []
    for now, stamp in enumerate(("1", "1", "1", "2", "2", "3"), 1):
        task = arrivals.take(ANYBODY, float(now))
        come = [found("old", stamp), found("new", stamp), found("segment@0-5")]
        new, changed = arrivals.listed(task, come, "", float(now))
        told.append(([each.name for each in new], changed))
    assert told == [
        (["segment@0-5"], []),
        (["new"], []),
        ([], []),
        ([], ["old", "new"]),
        ([], []),
        ([], []),
    ]


def test_one_worker_lists_at_a_time_and_begins_where_the_one_before_ended():
    arrivals = Arrivals(2.0, 0.0, 0.0, TaskIds())
    arrivals.known([], "offset 5")
    task = arrivals.take(ANYBODY, 10.0)
    assert (task.kind, task.token) == (pb.LIST_SOURCES, "offset 5")
    assert arrivals.take(ANYBODY, 30.0) is None
    arrivals.give_back(task)
    again = arrivals.take(ANYBODY, 30.0)
    assert (again.token, again.id != task.id) == ("offset 5", True)
    arrivals.listed(again, [], "offset 9", 30.5)
    assert arrivals.take(ANYBODY, 30.6).token == "offset 9"  # since 10.0 it is long due


@pytest.mark.parametrize(
    ("by", "fields", "last"), [("--until-idle", (5, 0), 8), ("--leg", (0, 8), 9)]
)
def test_no_more_are_looked_for_after_a_while(by, fields, last):
    """The source that comes counts in the third listing, as it is still written at first."""
    arrivals = Arrivals(1.0, *map(float, fields), TaskIds())
    arrivals.known([], "")
    for now in range(1, 20):
        task = arrivals.take(ANYBODY, 100.0 + now)
        if task is None:
            break
        come = [found("a", "1" if now == 1 else "2")] if now < 4 else []
        arrivals.listed(task, come, "", 100.0 + now)
    assert (arrivals.ended_by, now) == (by, last + 1)
    assert not arrivals.due(500.0)


# ------------------------------------------------------------ whole jobs


def arriving(**changes):
    data = DataDescribed(training=(Source("a", 10),), token="t1")
    return begun(data, **{"arriving": 1.0, "workers": "2"} | changes)


def list_sources(job, worker, now, *names):
    """The worker is given the listing, and reports these."""
    task = take(job, worker, now=now)
    assert task.kind == pb.LIST_SOURCES, task
    come = tuple(found(each, "1") for each in names)
    job.on(TaskReported(worker, 0, task.id, DataDescribed(more_training=come), 0), now)
    return task


def test_what_comes_is_described_and_trained_and_the_job_ends_when_nothing_does():
    job = arriving(until_idle=5.0)
    assert list_sources(job, w(0), 1.0).token == "t1"
    assert take(job, w(0), now=1.0).span.source == "a"
    assert isinstance(job.task_wanted(w(1), 0, 1.5), Wait)
    list_sources(job, w(1), 2.0, "b")
    assert isinstance(job.task_wanted(w(1), 0, 2.5), Wait)  # it may still be written
    list_sources(job, w(1), 3.0, "b")
    task = take(job, w(1), now=3.1)
    assert (task.kind, task.sources) == (pb.DESCRIBE_SOURCES, ("b",))
    described = DataDescribed(training=(Source("b", 10),))
    job.on(TaskReported(w(1), 0, task.id, described, 0), 3.2)
    assert finish_next(job, w(1), Done(), now=3.3).span.source == "b"
    for now in (4.0, 5.0, 6.0, 7.0, 8.0):
        assert job.phases.phase == Phase.TRAINING
        list_sources(job, w(1), now)
    assert job.phases.phase == Phase.TRAINING  # worker 0 has not ended its task
    finished = job.members.workers[w(0)].held
    job.on(TaskReported(w(0), 0, finished.id, Done(), 0), 9.0)
    confirm(job, 9.0)
    assert job.phases.phase == Phase.SUCCEEDED
    assert job.work.ledger.trained_once == 20
    assert "no more data is looked for (--until-idle)" in str(list(job.record.messages))


def test_a_worker_that_trains_ahead_looks_for_files_first():
    job = arriving(workers="1")
    list_sources(job, w(0), 1.0)
    held = take(job, w(0), now=1.1)
    answer = job.on(TaskAheadWanted(w(0), 0, held.id), 5.0)
    assert isinstance(answer, Finished)  # a listing is due


def test_who_dies_while_listing_loses_nothing():
    job = arriving()
    task = take(job, w(0), now=1.0)
    job.on(exited(w(0)), 1.5)
    again = list_sources(job, w(1), 2.0, "b")
    assert again.id != task.id
    list_sources(job, w(1), 3.0, "b")
    assert job.work.description.names("training") == {"b"}


def test_storage_that_fails_at_times_ends_no_job_and_one_that_stays_away_does():
    job = arriving()
    trouble = Failure(pb.STORAGE, "the bucket is away", "")
    for now in (1.0, 10.0, 20.0):
        task = take(job, w(0), now=now)
        job.on(TaskReported(w(0), 0, task.id, trouble, 0), now)
        list_sources(job, w(0), now + 1, "b")
    assert job.phases.phase == Phase.TRAINING
    for now in (30.0, 31.0):
        task = take(job, w(0), now=now)
        assert task.kind == pb.LIST_SOURCES
        job.on(TaskReported(w(0), 0, task.id, trouble, 0), now)
    assert job.phases.phase == Phase.FAILED


def test_the_status_says_that_it_waits_for_files_and_a_changed_one_is_named():
    job = arriving(workers="1")
    list_sources(job, w(0), 1.0, "a")
    finish_next(job, w(0), Done(), now=1.1)
    for now in range(2, 2 + FRUITLESS):
        list_sources(job, w(0), float(now))
    assert waits_for(job) == "new files of --training-data (--arriving)"
    task = take(job, w(0), now=9.0)
    changed = DataDescribed(more_training=(found("a", "2"),))
    job.on(TaskReported(w(0), 0, task.id, changed, 0), 9.0)
    assert "a has changed after this job had found it" in str(list(job.record.messages))
