"""What bounds training: a pure function of the workers' stages and the servers' processors."""

import pytest

from shoal.master.job.events import WorkerFenced, WorkerRegistered
from shoal.master.job.scaling.stage_times import FEEDS, WorkerTime
from shoal.master.job.view import status
from shoal.master.job.view.diagnosis import Bound, Facts, diagnose
from shoal.master.job.view.status import diagnosis, status_message
from shoal.master.result import result_of
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.record import CoresInUse, ProcessorTime
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, exited, heartbeat, take, w


def worker(index=0, steps=1000, seconds=100.0, **shares):
    """A worker's time: the share of each stage, of so many seconds in training."""
    stages = {
        name if name in FEEDS else name.replace("_", " "): share * seconds
        for name, share in shares.items()
    }
    return WorkerTime(f"worker-{index}", stages | {"training": seconds}, steps)


def found(*workers, **facts):
    known = {"cores": [0.2], "servers": 1, "batch_size": 512} | facts
    return diagnose(Facts(workers=workers, **known))


BALANCED = {"read": 0.1, "feed": 0.3, "pull": 0.4, "step": 0.45, "push": 0.3}


def test_too_little_is_not_judged():
    assert found().bound_by == Bound.UNKNOWN
    assert found(worker(steps=19, step=1.0)).bound_by == Bound.UNKNOWN
    assert found(worker(seconds=1.9, step=1.0)).bound_by == Bound.UNKNOWN
    assert found(worker(steps=20, seconds=2.0, step=1.0)).bound_by == Bound.STEP


def test_where_nothing_dominates_it_says_so():
    for shares in (
        BALANCED,
        BALANCED | {"step": 0.9, "pull": 0.85},  # the slowest is hardly slower than the next
    ):
        told = found(worker(**shares))
        assert told.bound_by == Bound.NOTHING
        assert told.evidence.startswith("no part of a step dominates: the model's step")


def test_slow_data_and_a_slow_feed():
    told = found(worker(**BALANCED | {"read": 0.8, "feed": 0.1, "wait_for_data": 0.5}))
    assert told.bound_by == Bound.DATA
    assert told.evidence == (
        "a step waits for data for 50% of the time: reading takes 80% of it, feed 10%"
    )
    assert "Parquet instead of CSV" in told.advice
    # Without the input a step would take half of the time: 0.9 / 0.45.
    assert told.advice.endswith("--workers 2 (up to about +100%)")
    told = found(worker(**BALANCED | {"read": 0.1, "feed": 0.8, "wait_for_data": 0.5}))
    assert told.bound_by == Bound.FEED
    assert told.advice.startswith("do less in feed, or write feed_batch; ")


def test_a_module_that_has_feed_batch_is_not_told_to_write_it():
    told = found(worker(read=0.1, feed_batch=0.8, step=0.45, wait_for_data=0.5))
    assert told.bound_by == Bound.FEED
    assert told.evidence == (
        "a step waits for data for 50% of the time: feed_batch takes 80% of it, reading 10%"
    )
    assert told.advice == (
        "fewer or cheaper operations in feed_batch, or a larger --batch-size; "
        "or feed in more workers: --workers 2 (up to about +100%)"
    )
    short = found(worker(read=0.1, feed_batch=0.8, step=0.4, steps=5000), batch_size=32)
    assert short.bound_by == Bound.FEED  # and not too small minibatches: each takes 16 ms


@pytest.mark.parametrize(
    ("shares", "cores", "advice"),
    [
        ({"feed": 0.9}, 0.2, "do less in feed, or write feed_batch; {}"),
        ({"read": 0.9}, 0.2, "read faster: {}"),
        ({"step": 0.9}, 0.2, "{}; or a smaller model"),
        ({}, 0.2, "{}"),
        ({"pull": 0.95, "wait_for_pull": 0.6}, 0.9, "{}"),
    ],
)
def test_a_machine_whose_cores_are_in_use_gets_no_more_processes(shares, cores, advice):
    shares = BALANCED | shares
    kind = "servers" if cores > 0.5 else "workers"
    full = f"more {kind} need more cores or machines: the 2 here are in use"
    begin, _, end = advice.partition("{}")
    for in_use in (1.7, 2.0):
        told = found(worker(**shares), cores=[cores], machine_cores=2, cores_in_use=in_use)
        assert told.advice.startswith(begin)
        assert told.advice.endswith(full + end)
        assert "--num" not in told.advice
    free = found(worker(**shares), cores=[cores], machine_cores=8, cores_in_use=2.0)
    assert free == found(worker(**shares), cores=[cores])
    assert full not in free.advice


def test_a_gain_is_no_larger_than_the_machine_has_cores_for():
    shares = BALANCED | {"feed": 0.8, "wait_for_data": 0.5}
    told = found(worker(**shares), machine_cores=2, cores_in_use=1.6)
    assert told.advice.endswith("--workers 2 (up to about +25%)")


def test_the_use_of_cores_is_that_of_training():
    cores = CoresInUse()
    assert (cores.cores, cores.mean) == (0, 0.0)
    cores.add(ProcessorTime(2, 500, 1000), training=True)
    assert cores.cores == 0
    cores.add(ProcessorTime(2, 700, 1200), training=True)
    cores.add(ProcessorTime(2, 700, 2000), training=False)
    cores.add(ProcessorTime(2, 800, 2200), training=True)
    assert (cores.cores, cores.mean) == (2, 1.5)


def test_starved_servers_and_slow_answers_of_idle_ones():
    shares = {"feed": 0.3, "pull": 0.95, "wait_for_pull": 0.68, "step": 0.67, "push": 0.5}
    told = found(worker(**shares), cores=[0.5, 0.96], servers=2)
    assert told.bound_by == Bound.SERVERS
    assert told.evidence == (
        "a step waits for pulls for 68% of the time while the busiest server uses 96% of a core"
    )
    # The pulls of three servers take 0.63, which is less than the 0.67 of a step.
    assert told.advice == "--servers 3, if there is a core for each (up to about +40%)"
    told = found(worker(**shares), cores=[0.1, 0.05], servers=2)
    assert told.bound_by == Bound.CALLS
    assert told.evidence.endswith("and the busiest server uses 10% of a core")
    assert found(worker(**shares), cores=[]).bound_by == Bound.CALLS


def test_without_a_pipeline_the_parts_follow_one_another():
    shares = {"read": 0.1, "feed": 0.2, "pull": 0.35, "step": 0.3, "push": 0.3}
    told = found(worker(**shares), cores=[0.9], pipelined=False)
    assert told.bound_by == Bound.SERVERS
    assert told.evidence.startswith("pulls and pushes take 65% of the workers' time while")
    # Twice as many servers halve the 65%: 1 / (1 - 0.325).
    assert told.advice == "--servers 2, if there is a core for each (up to about +50%)"
    assert found(worker(**shares), cores=[0.9]).bound_by == Bound.NOTHING


def test_small_minibatches():
    told = found(worker(steps=20_000, **BALANCED), batch_size=4)
    assert told.bound_by == Bound.MINIBATCHES
    assert told.evidence.startswith("a step has 4 records and takes 5 ms")
    assert told.advice.startswith("--batch-size 128,")
    # Accumulated ones are small, too; large ones or slow steps are not.
    assert found(worker(**BALANCED), batch_size=4, accumulated=20).bound_by == told.bound_by
    assert found(worker(**BALANCED), batch_size=4).bound_by == Bound.NOTHING
    assert found(worker(steps=20_000, **BALANCED), batch_size=65).bound_by == Bound.NOTHING
    # An input that is slow for any number of records is not the minibatches' fault.
    slow = {"feed": 0.95, "step": 0.2}
    assert found(worker(steps=3000, **slow), batch_size=4).bound_by == Bound.FEED


@pytest.mark.parametrize("others", [1, 3])
def test_a_straggler(others):
    quick = [worker(index, steps=1000, **BALANCED) for index in range(others)]
    slow = worker(others, steps=100, feed=0.9, step=0.1)
    told = found(*quick, slow)
    assert told.bound_by == Bound.STRAGGLER
    assert told.evidence == (
        f"a step of worker-{others} takes 1.0 s, of the others 100 ms; it is busy with feed for "
        "90% of its time"
    )
    assert f"shoal stacks JOB worker {others}" in told.advice
    # One that came late has mostly compiled, and one that is a little slower is none.
    late = worker(others, steps=2, seconds=10.0, step=0.9)
    assert found(*quick, late).bound_by == Bound.NOTHING
    assert found(*quick, worker(others, steps=600, **BALANCED)).bound_by == Bound.NOTHING


def test_a_straggler_for_which_the_others_wait():
    # All do as many steps; what counts is their own time.
    quick = [worker(i, steps=100, wait_for_workers=0.8, step=0.1) for i in range(2)]
    slow = worker(2, steps=100, step=0.95)
    told = found(*quick, slow)
    assert told.bound_by == Bound.STRAGGLER
    assert "and the others wait for it for 80% of theirs" in told.evidence
    assert "--staleness-bound" in told.advice


def test_a_straggler_beside_others_that_do_nothing_but_wait():
    waiting = [worker(i, steps=1000, wait_for_workers=1.0) for i in range(2)]
    told = found(*waiting, worker(2, steps=1000, step=0.95))
    assert told.bound_by == Bound.STRAGGLER
    assert told.evidence.startswith("a step of worker-2 takes 100 ms, of the others less than 1 ms")
    # What takes no time to speak of is not slow, though it is many times nothing.
    for own in (0.0, 0.01):
        shares = {"wait_for_workers": 1 - own, "step": own}
        assert found(*waiting, worker(2, steps=1000, **shares)).bound_by == Bound.WORKERS


def test_workers_that_wait_for_one_another():
    told = found(*(worker(i, wait_for_update=0.6, step=0.2) for i in range(2)), pipelined=False)
    assert told.bound_by == Bound.WORKERS
    assert "--grads-to-wait" in told.advice


def test_a_job_judges_all_incarnations_of_its_workers_and_the_servers_while_it_trained():
    job = begun(DataDescribed(training=(Source("t", 60),)), workers="1")
    assert diagnosis(job).bound_by == Bound.UNKNOWN
    for seconds, cpu in ((10.0, 3.0), (14.0, 6.0)):
        told = pb.ServerStatus(seconds=seconds, cpu_seconds=cpu)
        job.servers.answered(ServerId(0), told)
    task = take(job, w(0))
    stages = {"training": 6.0, "pull": 5.0, "step": 1.0}
    job.heartbeat(w(0), 0, heartbeat(task.id, stage_seconds=stages, steps_done=15), 2.0)
    assert diagnosis(job).bound_by == Bound.UNKNOWN
    job.on(exited(w(0)), 3.0)
    job.on(WorkerFenced(w(0), 0, [None]), 3.0)
    job.on(WorkerRegistered(w(0), 1), 4.0)
    job.heartbeat(w(0), 1, heartbeat(stage_seconds=stages, steps_done=15), 5.0)
    shown = status_message(job, 6.0).diagnosis
    assert shown.bound_by == "servers"
    assert shown.evidence.endswith("while the server uses 75% of a core")


def broken(_):
    raise ZeroDivisionError("float division by zero")


def test_a_diagnosis_that_fails_costs_a_log_line(monkeypatch, caplog):
    monkeypatch.setattr(status, "diagnose", broken)
    monkeypatch.setattr(status, "_told", set())
    job = begun(DataDescribed(training=(Source("t", 60),)), workers="1")
    assert not status_message(job, 1.0).HasField("diagnosis")
    result = result_of(job, 2.0)
    assert result["diagnosis"] is None
    assert result["ledger"]["total"] == 60
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "what bounds training cannot be told: ZeroDivisionError" in line.getMessage()


def test_times_that_are_no_numbers_cost_no_more_than_the_diagnosis():
    job = begun(DataDescribed(training=(Source("t", 60),)), workers="2")
    for worker_, value in ((w(0), float("nan")), (w(1), float("inf"))):
        stages = dict.fromkeys(("training", "read", "pull", "step"), value)
        job.heartbeat(worker_, 0, heartbeat(stage_seconds=stages, steps_done=50), 2.0)
    assert result_of(job, 3.0)["state"] == "training"


def test_a_job_that_trains_nothing_is_not_judged():
    job = begun(
        DataDescribed(validation=(Source("v", 20),)),
        command="evaluate",
        validation_data="v",
        training_data="",
        restore_from="x",
    )
    assert diagnosis(job) is None
    assert not status_message(job, 1.0).HasField("diagnosis")
