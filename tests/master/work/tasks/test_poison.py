"""Bad records are found among good ones, whoever meets them, and only they are given up."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.instructions import FenceWorker, KillProcess, StartProcess
from shoal.master.job.view.status import status_message
from shoal.master.journal import audit
from shoal.master.journal.events import Entry, RecordedJob
from shoal.master.result import result_of
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import Start
from shoal.master.work.outcomes import (
    DataDescribed,
    Done,
    MetricsComputed,
    StatesComputed,
    Trained,
)
from shoal.master.work.phases import Phase
from shoal.master.work.record import MESSAGES
from shoal.master.work.units import Source, Span, Task
from shoal.proto import shoal_pb2 as pb
from tests.examples import examples
from tests.master.random_jobs import plain
from tests.master.strategies import (
    config,
    confirm,
    exited,
    finish_next,
    heartbeat,
    register,
    take,
    w,
)

BATCH = 5
CURSED = "ValueError: record is cursed"


class World:
    """Workers that do what they are told, and fail at bad records.

    bad: positions of bad records, by source. alone: whether a failure names the very record,
    as an exception of feed does, or its batch, as one of the model. aligned: whether batches
    are known to be made of consecutive records. crash: bad records end the process. gone: whether
    a failure tells how many bad ones follow one another.
    """

    def __init__(
        self,
        configuration: JobConfig,
        data,
        bad,
        *,
        alone=True,
        aligned=True,
        crash=(),
        gone=False,
    ):
        self.events: list[Entry] = []
        self.job = RecordedJob(configuration, self.events.append)
        register(self.job, data)
        self.bad = bad
        self.crash = frozenset(crash)
        self.alone, self.aligned, self.gone = alone, aligned, gone
        self.trained: dict[tuple[int, str, int], int] = {}
        self.seen: dict[tuple[str, int], int] = {}
        self.failed_on: dict[Span, list[int]] = {}
        self.incarnations = dict.fromkeys(self.job.members.workers, 0)
        self.starts = 0
        self.now = 1.0

    def run(self, steps=2000):
        """Let the workers work in turns until the job has ended."""
        for _ in range(steps):
            for worker in list(self.incarnations):
                if self.job.ended:
                    return self
                self.now += 1.0
                task = self.job.task_wanted(worker, self.incarnations[worker], self.now)
                if isinstance(task, Task):
                    self.work(worker, task)
                self._obey()
        raise AssertionError(f"still {self.job.phases.phase} after {steps} rounds")

    def work(self, worker, task):
        outcome, trained = self._outcome(task)
        if outcome is None:
            self._crash(worker, task, trained)
            return
        if isinstance(outcome, Failure):
            self.failed_on.setdefault(task.span, []).append(worker.index)
        self.job.on(
            events.TaskReported(worker, self.incarnations[worker], task.id, outcome, 1, trained),
            self.now,
        )
        confirm(self.job, self.now)

    def _outcome(self, task):
        span = task.span
        if span is None:
            if task.kind == pb.FINISH_EVALUATION:
                return MetricsComputed(
                    {"n": task.states.metrics[0].variables[0].values[0]}
                ), Trained()
            return Done(), Trained()
        bad = [n for n in range(span.start, span.end) if n in self.bad.get(span.source, ())]
        good_batches = (bad[0] - span.start) // BATCH if bad else None
        end = span.end if good_batches is None else span.start + good_batches * BATCH
        if task.kind == pb.TRAIN:
            for record in range(span.start, end):
                key = task.epoch, span.source, record
                self.trained[key] = self.trained.get(key, 0) + 1
        if not bad:
            if task.kind == pb.EVALUATE:
                metric = pb.DoubleArray(shape=[1], values=[float(len(span))])
                state = pb.MetricState(name="n", variables=[metric])
                return StatesComputed(pb.MetricStates(metrics=[state])), Trained()
            return Done(), Trained()
        done = end - span.start
        if (span.source, bad[0]) in self.crash:
            return None, Trained(done)
        blamed = Span(span.source, bad[0], bad[0] + 1)
        if not self.alone:
            blamed = Span(span.source, end, min(end + BATCH, span.end))
        if not self.aligned:
            blamed = span
        trained = Trained(done, done) if self.aligned else Trained(0, span_touched(done, span))
        failure = Failure(
            pb.USER_CODE, f"feed() raised {CURSED}", "Traceback ...", blamed, CURSED, "row 7"
        )
        if self.gone:
            known = self.bad[span.source]
            end = next(n for n in itertools.count(bad[0]) if n not in known)
            failure = replace(failure, gone=end - bad[0])
        return failure, trained

    def _crash(self, worker, task, trained):
        incarnation = self.incarnations[worker]
        self.job.on(exited(worker, incarnation, code=None, signal_number=11), self.now)
        push = AppliedPush(1 if trained.done else 0, task.id, trained.done)
        self.job.on(events.WorkerFenced(worker, incarnation, [push]), self.now)
        confirm(self.job, self.now)  # the death may have decided on the last records

    def _obey(self):
        for each in self.job.take_instructions():
            if isinstance(each, StartProcess):
                self.starts += 1
                self.incarnations[each.start.process] = each.start.incarnation
                self.job.on(
                    events.WorkerRegistered(each.start.process, each.start.incarnation), self.now
                )

    def audited(self):
        """What `shoal audit` makes of the events."""
        auditor = audit.Auditor(RecordedJob(self.job.config, lambda _: None))
        for event in self.events:
            auditor.follow(plain(event))
        return auditor.report()

    @property
    def given_up(self):
        return {(each.source, each.record) for each in self.job.work.failures.bad.given_up}


def span_touched(done, span):
    return len(span) if done else 0


def training(*lengths):
    return DataDescribed(training=tuple(Source(f"t{i}", n) for i, n in enumerate(lengths)))


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), alone=st.booleans(), aligned=st.booleans(), workers=st.integers(1, 3))
def test_only_bad_records_fail_and_all_others_are_trained_once(data, alone, aligned, workers):
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=2))
    bad = {
        f"t{i}": data.draw(st.frozensets(st.integers(0, n - 1), max_size=min(n, 4)))
        for i, n in enumerate(lengths)
    }
    all_bad = {(source, record) for source, records in bad.items() for record in records}
    crash = data.draw(st.frozensets(st.sampled_from(sorted(all_bad)))) if all_bad else frozenset()
    configuration = config(
        workers=str(workers),
        epochs=2,
        max_bad_records=8,
        num_minibatches_per_task=4,
        relaunch_limit=3 + 3 * len(crash),
    )
    world = World(
        configuration, training(*lengths), bad, alone=alone, aligned=aligned, crash=crash
    ).run()
    job = world.job
    assert job.phases.phase == Phase.SUCCEEDED, job.phases.failure
    assert world.given_up == all_bad
    wanted = {
        (epoch, f"t{i}", record)
        for epoch in range(2)
        for i, n in enumerate(lengths)
        for record in range(n)
        if (f"t{i}", record) not in all_bad
    }
    assert set(world.trained) == wanted
    if aligned:
        assert set(world.trained.values()) <= {1}
    ledger = job.work.ledger
    job.work.board.check()
    assert ledger.failed == 2 * len(all_bad)
    assert ledger.trained == len(wanted)
    assert ledger.pending == 0
    report = world.audited()
    assert report.problems == []
    assert report.records["failed"] == ledger.failed
    assert {(each["source"], each["record"]) for each in report.bad_records} == all_bad


@given(st.integers(1, 4), st.integers(0, 30), st.integers(1, 40), st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_records_that_are_gone_together_are_given_up_together(size, first, count, workers):
    lengths = {"t0": 60, "t1": 25}
    bad = {"t0": set(range(first, min(first + count, 60)))}
    options = {"epochs": 2, "num_minibatches_per_task": size, "workers": str(workers)}
    world = World(
        config(max_bad_records=60, **options), training(*lengths.values()), bad, gone=True
    )
    job = world.run().job
    job.work.board.check()
    assert job.phases.phase == Phase.SUCCEEDED, job.phases.failure
    wanted = {
        (epoch, source, record)
        for epoch in range(2)
        for source, length in lengths.items()
        for record in range(length)
        if record not in bad.get(source, ())
    }
    assert (set(world.trained), set(world.trained.values())) == (wanted, {1})
    assert job.work.ledger.failed == 2 * len(bad["t0"])
    assert job.work.failures.bad.count == status_message(job, 9.0).bad_records == len(bad["t0"])
    entries = result_of(job, 9.0)["bad_records"]
    found = {n for each in entries for n in range(each["record"], each["record"] + each["records"])}
    assert found == bad["t0"]
    # Those before the first that is met are met later, and others may have leases meanwhile.
    assert len(entries) <= 2 * workers
    report = world.audited()
    assert report.problems == []


def test_one_bad_record_too_many_fails_the_job_with_its_place():
    world = World(config(max_bad_records=1), training(30), {"t0": {3, 17}}).run()
    result = result_of(world.job, 9.0)
    assert result["state"] == "failed"
    failure = result["failure"]
    assert failure["message"].startswith("2 records are bad, and --max-bad-records is 1. The last")
    assert f"t0, row 7 (training data): feed() raised {CURSED}" in failure["message"]
    assert failure["traceback"] == "Traceback ..."
    assert failure["range"]["end"] - failure["range"]["start"] == 1
    assert {each["record"] for each in result["bad_records"]} == {3, 17}
    ledger = result["ledger"]
    assert ledger["failed"] == 2
    assert ledger["total"] == sum(ledger[name] for name in ledger if name != "total")
    assert status_message(world.job, 9.0).bad_records == 2
    assert world.audited().problems == []


def test_by_default_the_first_bad_record_fails_the_job_and_names_it():
    world = World(config(), training(30), {"t0": {17}}, alone=False).run()
    failure = world.job.phases.failure
    assert failure.kind == pb.USER_CODE
    assert failure.span == Span("t0", 17, 18)
    assert failure.message == f"t0, row 7 (training data): feed() raised {CURSED}"


def test_a_failed_range_goes_to_another_worker_first():
    world = World(config(workers="2", max_bad_records=1), training(10), {"t0": {4}})
    job = world.job
    span = Span("t0", 0, 10)
    first = take(job, w(0))
    # Nobody else is at work, so nobody else would ask.
    world.work(w(0), first)
    assert take(job, w(0)).span == span
    world = World(config(workers="2", max_bad_records=1), training(20), {"t0": {4, 14}})
    job = world.job
    tasks = {worker: take(job, w(worker)) for worker in (0, 1)}
    world.work(w(0), tasks[0])
    assert job.task_wanted(w(0), 0, 2.0) is not None
    assert job.members.workers[w(0)].held is None  # it waits: the other one is to try
    world.work(w(1), tasks[1])
    assert take(job, w(1)).span == tasks[0].span


def test_a_passing_trouble_costs_no_record():
    job = RecordedJob(config(), lambda _: None)
    register(job, training(10))
    span = Span("t0", 0, 10)
    finish_next(job, w(0), Failure(pb.USER_CODE, "no network", "Traceback", span))
    finish_next(job, w(0), Done())
    assert job.phases.phase == Phase.SUCCEEDED
    assert job.work.ledger.trained_once == 10
    assert job.work.failures.bad.given_up == []


def test_an_internal_error_that_repeats_at_one_range_leaves_restarts_for_others():
    job = RecordedJob(config(relaunch_limit=1, max_bad_records=1), lambda _: None)
    register(job, training(10))
    for incarnation in range(3):
        failure = Failure(pb.INTERNAL, "RuntimeError: ?", "Traceback", Span("t0", 0, 10))
        finish_next(job, w(0), failure, incarnation=incarnation)
        assert KillProcess(Start(w(0), incarnation)) in job.take_instructions()
        job.on(exited(w(0), incarnation), 1.0)
        job.on(events.WorkerFenced(w(0), incarnation, [AppliedPush(0, 0, 0)]), 1.0)
        assert job.take_instructions() == [StartProcess(Start(w(0), incarnation + 1))]
        job.on(events.WorkerRegistered(w(0), incarnation + 1), 1.0)
    assert take(job, w(0), 3).span == Span("t0", 0, 5)


def test_three_crashes_at_one_range_fail_a_job_that_may_give_up_none():
    world = World(config(), training(10), {"t0": {7}}, crash={("t0", 7)}).run()
    failure = world.job.phases.failure
    assert world.starts == 2
    assert failure.span == Span("t0", 5, 10)
    assert "records 5 to 9 of t0 ended the process of a worker 3 times" in failure.message
    assert "signal 11, SIGSEGV" in failure.message
    assert "--max-bad-records 1" in failure.message
    assert world.job.work.ledger.pending == 5


@pytest.mark.parametrize("end", [{"signal_number": 9}, {"signal_number": 11, "counted": False}])
def test_what_comes_from_outside_is_not_held_against_the_records(end):
    job = RecordedJob(config(relaunch_limit=9, max_bad_records=1), lambda _: None)
    register(job, training(10))
    for incarnation in range(5):
        assert take(job, w(0), incarnation).span == Span("t0", 0, 10)
        job.on(exited(w(0), incarnation, **end), 1.0)
        (fence,) = [i for i in job.take_instructions() if isinstance(i, FenceWorker)]
        job.on(events.WorkerFenced(w(0), fence.incarnation, [AppliedPush(0, 0, 0)]), 1.0)
        job.on(events.WorkerRegistered(w(0), incarnation + 1), 1.0)


def test_bad_validation_records_are_left_out_of_every_round():
    configuration = config(
        command="evaluate", validation_data="v", restore_from="r", max_bad_records=2
    )
    data = DataDescribed(validation=(Source("v", 25),))
    world = World(configuration, data, {"v": {3, 11}}).run()
    assert world.job.phases.phase == Phase.SUCCEEDED
    (result,) = world.job.work.evaluation_results
    assert (result.records, result.metrics) == (23, {"n": 23.0})
    # In a training job, a later round does not meet them again.
    configuration = config(validation_data="v", evaluation_steps=1, max_bad_records=2)
    data = DataDescribed(training=(Source("t0", 40),), validation=(Source("v", 25),))
    world = World(configuration, data, {"v": {3, 11}}).run()
    rounds = world.job.work.evaluation_results
    assert len(rounds) > 1
    assert {each.metrics["n"] for each in rounds} == {23.0}
    failed = [span for span in world.failed_on if span.start <= 3 < span.end]
    assert sum(len(world.failed_on[span]) for span in failed) == 3


def test_nothing_left_to_evaluate_fails_the_job():
    configuration = config(
        command="evaluate", validation_data="v", restore_from="r", max_bad_records=9
    )
    world = World(configuration, DataDescribed(validation=(Source("v", 3),)), {"v": {0, 1, 2}})
    assert "no record of --validation-data" in world.run().job.phases.failure.message


def test_bad_prediction_records_are_named_to_whoever_completes_the_output():
    configuration = config(
        command="predict", prediction_data="p", restore_from="r", output="o", max_bad_records=2
    )
    data = DataDescribed(prediction=(Source("p", 12), Source("q", 9)))
    world = World(configuration, data, {"p": {11}, "q": {0}})
    finished = []
    work = world.work
    world.work = lambda worker, task: (finished.append(task), work(worker, task))
    world.run()
    assert world.job.phases.phase == Phase.SUCCEEDED
    assert finished[-1].kind == pb.FINISH_PREDICTION
    assert finished[-1].skipped == (11, 12)
    assert finished[-1].position == 21


def test_a_resumed_job_tries_everything_again():
    world = World(config(), training(30), {"t0": {17}}).run()
    job = world.job
    assert job.ended
    changes = {"workers": "1", "servers": "1", "relaunch_limit": 3, "max_bad_records": 4}
    job.on(events.Resumed("again", changes, None, (), ()), 99.0)
    assert job.work.failures.bad.given_up == []
    assert job.work.failures.bad.limit == 4
    assert job.work.ledger.failed == 0
    job.work.board.check()


def storage_failure(task):
    message = "s3://bucket/part-3: cannot be read: timed out"
    return Failure(pb.STORAGE, message, span=task.span)


def test_storage_that_fails_is_held_against_no_record_and_goes_back_whole():
    """1. storage fails twice at a task, the second time after 5 were trained; 2. it is back."""
    job = RecordedJob(config(max_bad_records=3, batch_size=5), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    first = take(job, w(0))
    job.on(events.TaskReported(w(0), 0, first.id, storage_failure(first), 0), 2.0)
    again = take(job, w(0))
    assert (again.span, again.failures, again.crashes) == (first.span, 0, 0)
    failure = storage_failure(again)
    job.on(events.TaskReported(w(0), 0, again.id, failure, 1, Trained(5, 5)), 3.0)
    rest = take(job, w(0))
    assert (rest.span, rest.waited) == (Span("t", 5, first.span.end), 1)
    assert not rest.suspect
    job.on(events.TaskReported(w(0), 0, rest.id, Done(), 4), 4.0)
    while not job.ended:
        finish_next(job, w(0), Done())
        confirm(job, 5.0)
    assert job.phases.phase == Phase.SUCCEEDED
    assert not job.work.failures.bad.given_up
    assert job.work.ledger.trained_once == 20


def test_storage_that_never_gives_a_range_ends_the_job_with_its_name():
    job = RecordedJob(config(), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    for _ in range(3):
        assert not job.ended
        task = take(job, w(0))
        job.on(events.TaskReported(w(0), 0, task.id, storage_failure(task), 0), 2.0)
    assert job.phases.phase == Phase.FAILED
    assert job.phases.failure.kind == pb.USER_ERROR
    assert "could not be read, 3 times: s3://bucket/part-3" in job.phases.failure.message
    assert job.members.workers[w(0)].deaths == 0


def test_storage_that_fails_before_the_data_is_known_ends_the_job_and_later_costs_a_start():
    failure = Failure(pb.STORAGE, "s3://bucket/part-3: cannot be read: timed out")
    early = RecordedJob(config(), lambda event: None)
    register(early)
    early.on(events.ProcessFailed(Start(w(0), 0), failure), 1.0)
    assert early.phases.failure.kind == pb.USER_ERROR
    late = RecordedJob(config(relaunch_limit=0), lambda event: None)
    register(late, DataDescribed(training=(Source("t", 20),)))
    late.on(events.ProcessFailed(Start(w(0), 0), failure), 1.0)
    late.take_instructions()
    late.on(exited(w(0)), 2.0)
    late.on(events.WorkerFenced(w(0), 0, [None]), 3.0)
    assert StartProcess(Start(w(0), 1)) in late.take_instructions()
    assert late.phases.failure is None


def test_a_worker_that_waits_for_storage_is_named_once_and_when_it_goes_on():
    job = RecordedJob(config(), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    for _ in range(3):
        job.on(events.WorkerWaits(w(0), 0, "storage: part-3: timed out"), 2.0)
    assert status_message(job, 3.0).waits_for == "storage: part-3: timed out (worker-0)"
    job.on(events.WorkerWaits(w(0), 0, ""), 4.0)
    said = [text for text in job.record.messages if "storage" in text]
    assert [text.partition("worker-0 ")[2] for text in said] == [
        "waits for storage: part-3: timed out",
        "goes on; it has waited for storage: part-3: timed out",
    ]
    assert "storage" not in status_message(job, 5.0).waits_for


def test_all_workers_that_wait_for_storage_make_one_message_and_no_news_drives_a_warning_out():
    workers = 2 * MESSAGES
    job = RecordedJob(config(workers=str(workers)), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    job.on(events.Noted("warning: the updates of ps-0 are NOT PROTECTED"), 1.0)
    for time in (2.0, 4.0):
        told = len(job.record.messages)
        for worker in range(workers):
            job.on(events.WorkerWaits(w(worker), 0, f"storage: part-{worker}: timed out"), time)
        for worker in range(workers):
            job.on(events.WorkerWaits(w(worker), 0, ""), time + 1)
        assert [text.partition(" s: ")[2] for text in job.record.messages[told:]] == [
            "worker-0 waits for storage: part-0: timed out",
            f"{workers} workers go on; the first has waited for storage: part-0: timed out",
        ]
    for number in range(2 * MESSAGES):
        job.on(events.Noted(f"news {number}"), 6.0)
    warning, *news = job.record.messages
    assert "NOT PROTECTED" in warning
    assert [text.partition("news ")[2] for text in news] == [
        str(number) for number in range(MESSAGES, 2 * MESSAGES)
    ]


def test_a_worker_that_ended_while_it_waited_is_waited_for_no_more():
    job = RecordedJob(config(workers="2"), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    job.on(events.WorkerWaits(w(0), 0, "storage: a"), 2.0)
    job.on(exited(w(0)), 3.0)
    job.on(events.WorkerWaits(w(1), 0, "storage: b"), 4.0)
    job.on(events.WorkerWaits(w(1), 0, ""), 5.0)
    said = [text.partition(" s: ")[2] for text in job.record.messages if "storage" in text]
    assert said == [
        "worker-0 waits for storage: a",
        "worker-1 waits for storage: b",
        "worker-1 goes on; it has waited for storage: b",
    ]


def stuck(task):
    message = f"it is stuck for 700 s (--step-timeout-seconds): feed() of m.py of {task.span}"
    return Failure(pb.INTERNAL, message, "the stacks", Span("t", 4, 8), error=message)


def test_a_range_at_which_workers_stand_still_is_at_fault():
    """Three workers in a row report that they are stuck there; nobody's limit of starts is met."""
    job = RecordedJob(config(relaunch_limit=1, batch_size=4), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    for incarnation in range(3):
        assert not job.ended
        now = 100.0 * (incarnation + 1)
        task = take(job, w(0), incarnation, now=now)
        job.on(events.ProcessFailed(Start(w(0), incarnation), stuck(task)), now + 1.0)
        assert KillProcess(Start(w(0), incarnation)) in job.take_instructions()
        job.on(exited(w(0), incarnation), now + 2.0)
        job.on(events.WorkerFenced(w(0), incarnation, [None]), now + 3.0)
    assert job.phases.phase == Phase.FAILED
    assert "ended the process of a worker 3 times" in job.phases.failure.message
    assert "stuck for 700 s" in job.phases.failure.message
    assert any("worker-0 died (it is stuck for 700 s" in text for text in job.record.messages)


def test_the_limit_of_a_step_grows_with_the_longest_that_was_seen_and_slow_ones_are_told():
    job = RecordedJob(config(step_timeout_seconds=60.0), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    task = take(job, w(0))
    job.heartbeat(
        w(0),
        0,
        heartbeat(task.id, 1, version=1, loss=0.5, loss_batches=1, longest_seconds=2.0),
        2.0,
    )
    assert job.members.step_limit == 60.0
    job.heartbeat(w(0), 0, heartbeat(task.id, busy_seconds=5.0, busy_with="the step"), 3.0)
    assert not status_message(job, 3.0).waits_for
    job.heartbeat(w(0), 0, heartbeat(task.id, busy_seconds=7.0, busy_with="the step"), 4.0)
    assert status_message(job, 4.0).waits_for == "worker-0 to get on with the step"
    job.heartbeat(w(0), 0, heartbeat(task.id, longest_seconds=25.0), 5.0)
    assert job.members.step_limit == 75.0
    assert not status_message(job, 5.0).waits_for


def test_storage_that_takes_no_predictions_is_not_said_to_be_unreadable():
    job = RecordedJob(
        config(command="predict", prediction_data="p", restore_from="r", output="o"),
        lambda event: None,
    )
    register(job, DataDescribed(prediction=(Source("p", 20),)))
    assert job.phases.phase == Phase.PREDICTING
    for _ in range(3 * 20):
        if job.ended:
            break
        task = take(job, w(0))
        job.on(
            events.TaskReported(
                w(0), 0, task.id, Failure(pb.STORAGE, "o: no room", span=task.span), 0
            ),
            2.0,
        )
    assert "could not be predicted, 3 times: o: no room" in job.phases.failure.message
