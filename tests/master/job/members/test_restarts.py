"""How often a process is started again, and after how long; and starts that wait."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.master.job.delayed import DelayedStarts
from shoal.master.job.events import ProcessFailed, WorkerFenced, WorkerRegistered, WorkersWanted
from shoal.master.job.instructions import StartProcess
from shoal.master.job.members.restarts import LONGEST_PAUSE_SECONDS, REST_SECONDS, Restarts
from shoal.master.journal.events import RecordedJob
from shoal.master.work.accounts.applied import AppliedPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start, WorkerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from tests.master.strategies import begun, config, exited, register, w

TRAINING = DataDescribed(training=(Source("t", 100),))
HOUR = 3600.0


def starts(job):
    """The starts that are to be done, as (start, pause)."""
    taken = job.take_instructions()
    return [(i.start, i.pause) for i in taken if isinstance(i, StartProcess)]


def die(job, worker, incarnation, now, **end):
    """A worker ends, and is fenced."""
    job.on(exited(w(worker), incarnation, **end), now)
    job.on(
        WorkerFenced(w(worker), incarnation, [AppliedPush(0, 0, 0)] * job.config.num_servers), now
    )


def test_failures_before_the_window_do_not_count():
    job = begun(TRAINING, relaunch_limit=1)
    for incarnation in range(5):
        die(job, 0, incarnation, (incarnation + 1) * HOUR)
        assert starts(job) == [(Start(w(0), incarnation + 1), 0.0)]
    die(job, 0, 5, 5 * HOUR + 60.0)
    message = job.phases.failure.message
    assert "worker-0 failed 2 times within 3600 s" in message
    assert "--relaunch-limit 1 allows no further start" in message


def test_a_worker_that_fails_too_often_is_left_out_while_another_one_works():
    job = begun(TRAINING, workers="3", relaunch_limit=1)
    pauses = []
    for incarnation in range(5):
        die(job, 0, incarnation, 10.0 + incarnation)
        ((start, pause),) = starts(job)
        assert start == Start(w(0), incarnation + 1)
        pauses.append(pause)
    assert pauses == [0.0, 60.0, 120.0, 240.0, 480.0]
    assert "warning: worker-0 fails again and again; the others go on" in job.record.messages[-2]
    job.on(WorkerRegistered(w(0), 5), 20.0)
    for incarnation in range(2):
        die(job, 1, incarnation, 20.0)
        job.on(WorkerRegistered(w(1), incarnation + 1), 20.0)
    assert not job.ended
    # All others are beyond the limit by now: whatever is wrong, is not one node.
    for incarnation in range(2):
        die(job, 2, incarnation, 21.0)
    assert "worker-2 failed 2 times within 3600 s" in job.phases.failure.message


def test_failures_of_a_server_before_the_window_do_not_count():
    server = ServerId(0)
    job = begun(TRAINING, relaunch_limit=1)
    for incarnation in range(5):
        job.on(exited(server, incarnation), (incarnation + 1) * HOUR)
        assert starts(job) == [(Start(server, incarnation + 1), 0.0)]
    job.on(exited(server, 5), 5 * HOUR + 60.0)
    assert "It failed 2 times within 3600 s" in job.phases.failure.message


def test_pauses_grow_and_end_with_a_quiet_time():
    job = begun(TRAINING, workers="2", relaunch_limit=20)
    now, pauses = 1.0, []
    for incarnation in range(8):
        die(job, 0, incarnation, now)
        ((_, pause),) = starts(job)
        pauses.append(pause)
        now += pause
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert "restart 8, after a pause of 30 s" in job.record.messages[-1]
    # Another worker's failure is none of this one's.
    die(job, 1, 0, now)
    assert starts(job) == [(Start(w(1), 1), 0.0)]
    # Each is compared with the one before it alone.
    now += REST_SECONDS - 31.0
    die(job, 0, 8, now)
    assert starts(job) == [(Start(w(0), 9), 30.0)]
    now += REST_SECONDS
    die(job, 0, 9, now)
    assert starts(job) == [(Start(w(0), 10), 0.0)]
    die(job, 0, 10, now + REST_SECONDS - 1.0)
    assert starts(job) == [(Start(w(0), 11), 1.0)]


def test_an_end_that_does_not_count_makes_no_pause():
    job = begun(TRAINING, relaunch_limit=1)
    for incarnation in range(5):
        die(job, 0, incarnation, 1.0, counted=False)
        assert starts(job) == [(Start(w(0), incarnation + 1), 0.0)]
    assert job.members.workers[w(0)].restarts.failures == []


def test_restarts_are_counted_by_role_and_reason():
    job = begun(TRAINING, workers="4", servers="1", relaunch_limit=9)
    died = {"signal_number": None}
    die(job, 0, 0, 1.0, code=3, **died)
    die(job, 0, 1, 2.0)
    die(job, 1, 0, 3.0, counted=False)
    job.on(ProcessFailed(Start(w(2), 0), Failure.internal("a bug")), 4.0)
    die(job, 2, 0, 5.0, code=1, **died)
    job.on(WorkersWanted(3), 6.0)
    die(job, 3, 0, 7.0, code=0, **died)
    job.on(WorkersWanted(4), 8.0)
    job.on(exited(ServerId(0), 0, signal_number=11), 9.0)
    assert job.record.restarts == {
        ("worker", "crashed"): 1,
        ("worker", "killed"): 1,
        ("worker", "displaced"): 1,
        ("worker", "reported"): 1,
        ("worker", "wanted_again"): 1,
        ("ps", "crashed"): 1,
    }


def test_a_place_that_does_not_take_a_process_is_tried_again_with_growing_pauses():
    job = begun(TRAINING, relaunch_limit=0)
    now, pauses = 1.0, []
    for incarnation in range(7):
        die(job, 0, incarnation, now, counted=False, refused=True)
        ((_, pause),) = starts(job)
        pauses.append(pause)
        now += pause
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    server = ServerId(0)
    job.on(exited(server, counted=False, refused=True), now)
    assert starts(job) == [(Start(server, 1), 1.0)]
    assert not job.ended


def test_a_new_master_knows_the_failures_before_it():
    events = []
    job = RecordedJob(config(relaunch_limit=9), events.append)
    register(job, TRAINING)
    for incarnation in range(3):
        die(job, 0, incarnation, 10.0 + incarnation)
    again = RecordedJob(job.config, events.append)
    again.replay(list(events))
    assert again.members.workers == job.members.workers
    assert len(again.members.workers[w(0)].restarts.failures) == 3
    again.take_instructions()
    die(again, 0, 3, 14.0)
    assert starts(again) == [(Start(w(0), 4), 4.0)]


@given(st.lists(st.floats(0.0, 2000.0), max_size=200), st.floats(1.0, 5000.0))
def test_what_is_kept_of_failures_is_what_can_still_count(gaps, window):
    restarts, now, all_of_them = Restarts(), 0.0, []
    for gap in gaps:
        now += gap
        all_of_them.append(now)
        assert restarts.failed(now, window) == sum(now - at < window for at in all_of_them)
        assert 0.0 <= restarts.pause(now) <= LONGEST_PAUSE_SECONDS
        oldest = max(window, REST_SECONDS)
        assert len(restarts.failures) == sum(now - at < oldest for at in all_of_them)


def test_delayed_starts_come_when_they_are_due_unless_they_were_dropped():
    delayed = DelayedStarts()
    first, second, third = (Start(WorkerId(i), 0) for i in range(3))
    delayed.add(second, 2.0)
    delayed.add(first, 1.0)
    delayed.add(third, 2.0)
    assert delayed.due(0.9) == []
    assert delayed.due(1.0) == [first]
    assert delayed.drop(second)
    assert not delayed.drop(second)
    assert delayed.due(5.0) == [third]
    assert delayed.due(5.0) == []
