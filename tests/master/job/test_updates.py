"""Which gradients make an update of --sync: each admitted one is in exactly one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.master.job.events import (
    GradientOffered,
    MasterRestarted,
    ServerRegistered,
    TaskReported,
    UpdateApplied,
    WorkerFenced,
)
from shoal.master.job.instructions import ApplyUpdate, FenceWorker, StartProcess
from shoal.master.job.updates import Gradient, Updates
from shoal.master.journal.events import RecordedJob
from shoal.master.result import result_of
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source
from tests.master.strategies import begun, config, exited, register, take, w

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["enter", "leave", "join", "offer", "ahead", "offer again", "die", "applied"]
        ),
        st.integers(0, 3),
    ),
    max_size=60,
)


class Course:
    """Workers that train, whose gradients the servers would hold; checks every decision."""

    def __init__(self, size: int, *, fold: bool) -> None:
        self.updates = Updates(size, fold=fold)
        self.size, self.fold = size, fold
        self.training: set[int] = set()
        self.joined: dict[int, int] = {}
        self.numbers = dict.fromkeys(range(4), 0)
        self.offered: dict[int, tuple[Gradient, int, bool]] = {}
        self.admitted: list[Gradient] = []
        self.refused: list[Gradient] = []
        self.decided: list[Gradient] = []
        self.open, self.applied = 1, 0

    @property
    def waiting(self) -> list[Gradient]:
        """Gradients of the update that is open."""
        return self.admitted[len(self.decided) :]

    def do(self, what: str, index: int) -> None:
        if what == "enter":
            self.training.add(index)
            self.updates.enter(w(index))
        elif what in ("leave", "die"):
            self.training.discard(index)
            self.joined.pop(index, None)
            if what == "leave":
                self.updates.leave(w(index))
            else:
                self.updates.leave(w(index))
                kept = self.updates.kept(w(index), 0)
                assert set(kept) <= {
                    each.number for each in self.admitted if each.worker.index == index
                }
        elif what == "join" and index in self.training:
            if (update := self.updates.join(w(index))) is not None:
                assert update == self.open == self.applied + 1
                self.joined[index] = update
            else:
                self.joined.pop(index, None)
        elif what in ("offer", "ahead") and self.joined.get(index, self.applied + 2) <= (
            self.applied + 1
        ):
            # One that joined ahead computes when the update before its own is applied.
            self.numbers[index] += 1
            gradient = Gradient(w(index), 0, self.numbers[index])
            self.answer(gradient, self.joined.pop(index))
            if what == "ahead" and (update := self.updates.join_ahead(w(index))) is not None:
                gave = any(each.worker == w(index) for each in self.waiting)
                assert update - self.open in ((0, 1) if gave else (0,))
                self.joined[index] = update
        elif what == "offer again" and index in self.offered:
            gradient, update, answer = self.offered[index]
            assert self.updates.offer(gradient, update, 1, 1, leased=True) == answer
        elif what == "applied" and self.applied + 1 < self.open:
            self.applied += 1
            self.updates.applied(self.applied)

    def answer(self, gradient: Gradient, update: int) -> None:
        late = update != self.open
        admitted = self.updates.offer(gradient, update, 1, gradient.number, leased=True)
        assert admitted == (self.fold or not late)
        (self.admitted if admitted else self.refused).append(gradient)
        self.offered[gradient.worker.index] = gradient, update, admitted
        for decided in self.updates.take_decided():
            assert decided.number == self.open
            assert len(decided.gradients) == self.size
            self.decided += decided.gradients
            self.open += 1


@given(EVENTS, st.integers(1, 5), st.booleans())
def test_every_admitted_gradient_is_in_one_update_and_no_other(events, size, fold):
    course = Course(size, fold=fold)
    for event in events:
        course.do(*event)
    course.updates.flush()
    for update in course.updates.take_decided():
        course.decided += update.gradients
        course.open += 1
    assert sorted(course.decided, key=str) == sorted(course.admitted, key=str)
    assert len(set(course.decided)) == len(course.decided)
    course.updates.applied(course.open - 1)
    assert course.updates.idle
    counts = course.updates.counts
    assert (counts.gradients, counts.dropped) == (len(course.admitted), len(course.refused))


@given(EVENTS, st.integers(1, 5), st.booleans())
def test_somebody_in_training_may_always_go_on(events, size, fold):
    """Once what was decided is applied: no number of deaths leaves all of them waiting."""
    course = Course(size, fold=fold)
    for event in events:
        course.do(*event)
    while course.applied + 1 < course.open:
        course.do("applied", 0)
    for index in course.training:
        course.do("join", index)
    assert not course.training or course.joined


@given(EVENTS, st.integers(1, 5), st.booleans())
def test_workers_that_are_held_back_finish_what_they_began_and_wait(events, size, fold):
    """The moment comes in which no gradient waits, and it lasts until they are let go."""
    course = Course(size, fold=fold)
    for event in events:
        course.do(*event)
    course.updates.hold_back(True)
    for _ in range(40):
        for index in range(4):
            course.do("offer" if index in course.joined else "join", index)
            course.do("applied", 0)
    assert course.updates.quiet or not course.training
    if course.training:
        assert not course.joined
        course.updates.hold_back(False)
        for index in course.training:
            course.do("join", index)
        assert course.joined


def test_gradients_of_an_update_are_of_different_workers_while_there_are_enough():
    updates = Updates(2, fold=False)
    for index in range(3):
        updates.enter(w(index))
        assert updates.join(w(index)) == 1
    assert updates.offer(Gradient(w(0), 0, 1), 1, 1, 1, leased=True)
    assert updates.join(w(0)) is None
    updates.leave(w(1))
    assert updates.join(w(0)) is None  # that of worker 2 will do
    updates.leave(w(2))
    assert updates.join(w(0)) == 1


def test_the_next_update_begins_when_all_servers_have_applied_the_one_before():
    updates = Updates(1, fold=False)
    updates.enter(w(0))
    assert updates.join(w(0)) == 1
    assert updates.offer(Gradient(w(0), 0, 1), 1, 1, 1, leased=True)
    assert updates.join(w(0)) is None
    updates.applied(1)
    assert updates.join(w(0)) == 2


def test_the_order_of_a_sum_does_not_depend_on_who_came_first():
    updates = Updates(2, fold=False)
    for index in (1, 0):
        updates.enter(w(index))
        updates.join(w(index))
        updates.offer(Gradient(w(index), 0, 1), 1, 1, 1, leased=True)
    (update,) = updates.take_decided()
    assert [each.worker.index for each in update.gradients] == [0, 1]


# ---------------------------------------------------------------- in a job


def in_training(**changes):
    """A job of two workers, each with a task of 10 records in minibatches of 5."""
    data = DataDescribed((Source("t", 20),))
    job = begun(data, **({"workers": "2", "sync": True} | changes))
    return job, [take(job, w(index)) for index in range(2)]


def offer(job, index, number, task, records, update, incarnation=0):
    gradient = Gradient(w(index), incarnation, number)
    return job.on(GradientOffered(gradient, update, task.id, records), 1.0)


def updates_of(job):
    return [each.update for each in job.take_instructions() if isinstance(each, ApplyUpdate)]


def test_a_job_applies_the_short_last_update_before_it_goes_on():
    job, tasks = in_training(grads_to_wait=3)
    for index, task in enumerate(tasks):
        for records in (5, 10):
            update = job.update_wanted(w(index), 0, 1.0)
            assert offer(job, index, records, task, records, update)
            for each in updates_of(job):
                job.on(UpdateApplied(each.number, each.number), 1.0)
        job.on(TaskReported(w(index), 0, task.id, Done(), 0), 1.0)
    assert job.phases.phase == Phase.TRAINING
    (last,) = updates_of(job)
    assert len(last.gradients) == 1
    job.on(UpdateApplied(last.number, 2), 1.0)
    assert job.phases.phase == Phase.SUCCEEDED
    assert job.phases.version == 2
    assert job.work.ledger.trained_once == 20
    assert result_of(job, 2.0)["sync"] == {
        "updates": 2,
        "short": 1,
        "gradients": 4,
        "folded": 0,
        "dropped": 0,
    }


def test_what_a_killed_worker_had_admitted_counts_and_the_rest_is_trained_again():
    job, (task, _) = in_training()
    update = job.update_wanted(w(0), 0, 1.0)
    assert offer(job, 0, 7, task, 5, update)
    # Another gradient, which some servers may hold, was never offered.
    job.on(exited(w(0)), 1.0)
    (fence,) = [each for each in job.take_instructions() if isinstance(each, FenceWorker)]
    assert fence.kept == (7,)
    job.on(WorkerFenced(w(0), 0, [None]), 1.0)
    assert job.work.ledger.trained_once == 5
    rest = take(job, w(0), incarnation=1)
    assert rest.span.start == task.span.start + 5
    assert rest.trained_before == 0


def test_a_feed_that_shuffles_repeats_the_task_if_anything_of_it_was_admitted():
    for number, repeated in ((0, 0), (7, 10)):
        job, (task, _) = in_training()
        update = job.update_wanted(w(0), 0, 1.0)
        if number:
            assert offer(job, 0, number, task, 0, update)
        job.on(exited(w(0)), 1.0)
        job.on(WorkerFenced(w(0), 0, [None]), 1.0)
        assert take(job, w(0), incarnation=1).trained_before == repeated


def test_another_master_tells_the_servers_again_what_was_decided():
    events = []
    data = DataDescribed((Source("t", 20),))
    job = RecordedJob(config(workers="2", sync=True), events.append)
    register(job, data)
    for index in range(2):
        task = take(job, w(index))
        assert offer(job, index, 1, task, 5, job.update_wanted(w(index), 0, 1.0))
    (update,) = updates_of(job)
    again = RecordedJob(job.config, events.append)
    again.replay(tuple(events))
    again.on(MasterRestarted(), 2.0)
    assert updates_of(again) == [update]
    assert again.update_wanted(w(0), 0, 2.0) is None
    again.on(UpdateApplied(update.number, 1), 2.0)
    assert again.update_wanted(w(0), 0, 2.0) == 2


LOGGED = {"durability": "log", "checkpoint_seconds": 9.0, "servers": "2"}


def back(job, update, held, server=1):
    """A server dies and comes back with these; the fences that it is told."""
    job.on(exited(ServerId(server)), 2.0)
    assert any(isinstance(each, StartProcess) for each in job.take_instructions())
    return job.on(ServerRegistered(ServerId(server), 1, "host:9", update=update, held=held), 3.0)


def test_a_server_that_has_all_updates_and_gradients_goes_on():
    job, tasks = in_training(**LOGGED, grads_to_wait=2)
    for index in (0, 1):
        assert offer(job, index, 1, tasks[index], 5, job.update_wanted(w(index), 0, 1.0))
    (first,) = updates_of(job)
    assert (first.number, first.after) == (1, 0)
    job.on(UpdateApplied(1, 1), 1.0)
    # A gradient of the next update is admitted, and its worker dies.
    assert offer(job, 0, 2, tasks[0], 10, job.update_wanted(w(0), 0, 1.0))
    job.on(exited(w(0)), 1.0)
    (fence,) = back(job, 1, [Gradient(w(0), 0, 2)])
    assert fence == FenceWorker(w(0), 0, (2,))
    assert not job.ended


def test_a_server_that_has_applied_a_decided_update_needs_its_gradients_no_more():
    job, tasks = in_training(**LOGGED, grads_to_wait=2)
    for index in (0, 1):
        assert offer(job, index, 1, tasks[index], 5, job.update_wanted(w(index), 0, 1.0))
    back(job, 1, [])
    assert not job.ended


@pytest.mark.parametrize(
    ("update", "held", "lacks"),
    [
        (0, [Gradient(w(0), 0, 2)], "without update 1"),
        (1, [], "without a gradient of update 2"),
        (1, [Gradient(w(0), 1, 2)], "without a gradient of update 2"),
    ],
)
def test_a_server_that_lacks_something_ends_the_job(update, held, lacks):
    job, tasks = in_training(**LOGGED, grads_to_wait=2)
    for index in (0, 1):
        assert offer(job, index, 1, tasks[index], 5, job.update_wanted(w(index), 0, 1.0))
    job.on(UpdateApplied(1, 1), 1.0)
    assert offer(job, 0, 2, tasks[0], 10, job.update_wanted(w(0), 0, 1.0))
    back(job, update, held)
    assert job.phases.phase == Phase.FAILED
    assert lacks in job.phases.failure.message
    assert "shoal train --resume" in job.phases.failure.message


def test_a_server_may_lack_a_gradient_of_a_decided_update_in_no_case():
    job, tasks = in_training(**LOGGED, grads_to_wait=2)
    for index in (0, 1):
        assert offer(job, index, 1, tasks[index], 5, job.update_wanted(w(index), 0, 1.0))
    back(job, 0, [Gradient(w(0), 0, 1)])
    assert "without a gradient of update 1" in job.phases.failure.message


def test_without_a_log_a_server_s_death_ends_the_job():
    job, _ = in_training(durability="checkpoint")
    job.on(exited(ServerId(0)), 2.0)
    assert "Without a log of updates a server's death ends a job" in job.phases.failure.message


def test_the_numbers_of_updates_go_on_where_a_job_is_resumed():
    updates = Updates(1, fold=False)
    for number in (1, 2):
        updates.enter(w(0))
        assert updates.join(w(0)) == number
        updates.offer(Gradient(w(0), 0, number), number, 1, 1, leased=True)
        updates.applied(number)
    updates.resumed()
    assert updates.lacks(1, []) == ""  # the checkpoint may have been of update 1
    assert updates.join(w(0)) == 3
    updates.offer(Gradient(w(0), 1, 1), 3, 1, 1, leased=True)
    *_, last = updates.take_decided()
    assert (last.number, last.after) == (3, 0)
    updates.applied(3)
    assert updates.lacks(1, []) == "update 3"
    updates.join(w(0))
    updates.offer(Gradient(w(0), 1, 2), 4, 1, 1, leased=True)
    assert [each.after for each in updates.take_decided()] == [3]


def test_the_gradient_of_a_task_that_was_taken_away_is_not_admitted():
    job, (task, _) = in_training()
    update = job.update_wanted(w(0), 0, 1.0)
    job.on(TaskReported(w(0), 0, task.id, Done(), 0), 1.0)
    assert not offer(job, 0, 1, task, 5, update)
    assert job.updates.counts.dropped == 1


def test_too_few_workers_are_told_by_the_name_of_the_flag():
    job, _ = in_training(grads_to_wait=3)
    assert any(
        "--grads-to-wait 3 is above the number of workers, 2" in m for m in job.record.messages
    )
    job.on(exited(w(0)), 1.0)
    assert "the number of workers, 1" in job.record.messages[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grads_to_wait": 2}, "--grads-to-wait works only with --sync: add --sync"),
        ({"sync_late": "fold"}, "--sync-late works only with --sync: add --sync"),
        ({"sync": True, "sync_late": "keep"}, "--sync-late must be one of drop, fold"),
        ({"sync": True, "grads_to_wait": -1}, "--grads-to-wait must be at least 0"),
        ({"sync": True, "staleness_bound": 1}, "--staleness-bound cannot be combined"),
        ({"sync": True, "pipeline_depth": 1}, "--pipeline-depth cannot be combined"),
        ({"sync": True, "row_cache": "1"}, "--row-cache cannot be combined"),
        ({"sync": True, "lr_staleness_modulation": True}, "--lr-staleness-modulation cannot"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_by_name(changes, words):
    with pytest.raises(UserError, match=words):
        config(**changes)
