"""How long a job waits for processes that cannot run yet."""

import pytest

from shoal.config.groups.kubernetes import START_ERROR_SECONDS
from shoal.master.job.job import Job
from shoal.master.work.ids import ServerId, Start
from tests.master.strategies import config, exited, w

LATE = START_ERROR_SECONDS + 1
ROOM = "Unschedulable: 0/3 nodes are available"
IMAGE = "ErrImagePull: not found"


def begun(**changes):
    job = Job(config(workers="2", servers="2", **changes))
    job.begin(0.0)
    return job


def servers_come(job):
    for index in range(2):
        job.server_registered(ServerId(index), 0, f"ps-{index}", 0.0)


def test_room_is_waited_for_without_end_unless_somebody_says_otherwise():
    job = begun()
    job.process_waits(Start(ServerId(1), 0), ROOM, 0.0)
    job.tick(1e6)
    assert not job.ended
    job = begun(start_timeout=60.0)
    job.process_waits(Start(ServerId(1), 0), ROOM, 1.0)
    job.process_waits(Start(ServerId(1), 0), ROOM, 50.0)  # which is the same wait
    job.tick(61.0)
    assert not job.ended
    job.tick(62.0)
    assert job.phases.failure.message == (
        f"ps-1 could not start within 60 s (--start-timeout): {ROOM}"
    )


@pytest.mark.parametrize(("patience", "limit"), [(0.0, START_ERROR_SECONDS), (20.0, 20.0)])
def test_an_image_that_cannot_be_had_ends_the_job_after_a_while(patience, limit):
    job = begun(start_timeout=patience)
    job.process_waits(Start(ServerId(0), 0), ROOM, 0.0)
    job.process_waits(Start(ServerId(0), 0), IMAGE, 5.0, error=True)
    job.tick(limit)
    assert not job.ended
    job.tick(limit + 6)
    assert job.ended
    assert IMAGE in job.phases.failure.message


def test_only_the_time_counts_for_which_an_image_could_not_be_had():
    job = begun()
    start = Start(ServerId(0), 0)
    job.process_waits(start, ROOM, 0.0)
    job.process_waits(start, IMAGE, 600.0, error=True)
    job.tick(600.5)
    job.tick(600.0 + START_ERROR_SECONDS)
    assert not job.ended
    job.process_waits(start, "ContainerCreating: the reason before has passed", 900.0)
    job.tick(2000.0)
    assert not job.ended
    job.process_waits(start, IMAGE, 2000.0, error=True)
    job.process_waits(start, "ImagePullBackOff: not found", 2200.0, error=True)
    job.tick(2000.0 + START_ERROR_SECONDS)
    assert not job.ended
    job.tick(2000.0 + LATE)
    assert job.phases.failure.message == (
        "ps-0 could not start, as for 300 s its image or configuration could not be had: "
        "ImagePullBackOff: not found"
    )


def test_an_image_that_was_there_before_will_come_back():
    job = begun()
    servers_come(job)
    job.process_exited(exited(ServerId(0)), 1.0)
    job.process_waits(Start(ServerId(0), 1), IMAGE, 2.0, error=True)
    job.tick(2.0 + LATE)
    assert not job.ended


def test_workers_are_done_without_if_there_are_enough():
    job = begun()
    servers_come(job)
    for index in range(2):
        job.process_waits(Start(w(index), 0), IMAGE, 0.0, error=True)
    job.worker_registered(w(1), 0, LATE - 1)
    job.tick(LATE)
    assert not job.ended
    job = begun(min_workers=2)
    servers_come(job)
    job.process_waits(Start(w(0), 0), IMAGE, 0.0, error=True)
    job.tick(LATE)
    assert "worker-0 could not start" in job.phases.failure.message


def test_a_process_that_runs_waits_no_more():
    job = begun(start_timeout=60.0)
    start = Start(ServerId(0), 0)
    job.process_waits(start, ROOM, 0.0)
    job.process_started(start, 10.0)
    job.tick(100.0)
    assert not job.ended
    # What was not seen because the master itself stood still does not count.
    job.process_waits(Start(ServerId(1), 0), ROOM, 100.0)
    job.start_waits.unheard(50.0, 150.0)
    job.tick(161.0)
    assert not job.ended
    job.tick(212.0)
    assert job.ended


def test_a_job_ends_at_its_deadline_and_has_another_after_its_resumption():
    job = begun(active_deadline_seconds=600)
    job.tick(600.0)
    assert not job.ended
    job.tick(601.0)
    assert "--active-deadline-seconds" in job.phases.failure.message
    job.resumed("token", {}, None, [], [], 1000.0)
    job.tick(1600.0)
    assert not job.ended
    job.tick(1601.0)
    assert job.ended
