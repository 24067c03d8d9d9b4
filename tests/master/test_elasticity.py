"""How many workers a job has: the wish, the least, and what does not count as a failure."""

from dataclasses import replace

from shoal.master.applied import AppliedPush
from shoal.master.events import RecordedJob
from shoal.master.ids import ServerId, Start
from shoal.master.instructions import StartProcess, TerminateProcess, Wait
from shoal.master.job import Job
from shoal.master.outcomes import DataDescribed, Done
from shoal.master.work import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, config, exited, finish_next, take, w

DATA = DataDescribed(training=(Source("t", 60),))


def leaving(job):
    """Starts that were asked to end."""
    return [i.start for i in job.take_instructions() if isinstance(i, TerminateProcess)]


def test_fewer_workers_are_asked_to_end_and_do_not_come_back():
    job = begun(num_workers=3)
    job.take_instructions()
    job.scale(1, 1.0)
    assert leaving(job) == [Start(w(1), 0), Start(w(2), 0)]
    for worker in (1, 2):
        job.process_exited(exited(w(worker)), 2.0)
        job.fenced(w(worker), 0, [AppliedPush(0, 0, 0)] * job.config.num_ps, 2.0)
    assert not [i for i in job.take_instructions() if isinstance(i, StartProcess)]
    assert job.members.workers[w(1)].deaths == 0
    assert "worker-1 left" in " ".join(job.record.messages)
    # One that was asked to end does not use up a restart when it is wanted again.
    job.scale(4, 3.0)
    started = [i.start for i in job.take_instructions() if isinstance(i, StartProcess)]
    assert set(started) == {Start(w(1), 1), Start(w(2), 1), Start(w(3), 0)}
    assert not any(job.members.workers[w(i)].restarts.failures for i in (1, 2))


def test_training_waits_for_the_least_workers_once():
    job = Job(config(num_workers=3, min_workers=2))
    job.begin(0.0)
    for index in range(job.config.num_ps):
        job.server_registered(ServerId(index), 0, f"ps-{index}", 0.0)
    job.worker_registered(w(0), 0, 0.0)
    finish_next(job, w(0), DATA)
    assert isinstance(job.task_wanted(w(0), 0, 1.0), Wait)
    job.worker_registered(w(1), 0, 1.0)
    assert take(job, w(0)).kind == pb.TRAIN
    job.process_exited(exited(w(1)), 2.0)
    finish_next(job, w(0), Done())
    assert take(job, w(0)).kind == pb.TRAIN


def test_what_the_cluster_took_away_does_not_use_up_a_restart():
    job = begun(num_workers=1, relaunch_limit=0)
    lost = replace(exited(w(0)), why="its pod was preempted", counted=False)
    job.process_exited(lost, 1.0)
    job.fenced(w(0), 0, [AppliedPush(0, 0, 0)] * job.config.num_ps, 1.0)
    assert not job.ended
    assert job.members.workers[w(0)].incarnation == 1


def test_the_wish_outlives_the_master():
    events = []
    job = RecordedJob(config(num_workers=2), events.append)
    job.begin(0.0)
    job.scale(3, 1.0)
    job.process_waits(Start(w(2), 0), "Unschedulable: no room", 1.0)
    again = RecordedJob(job.config, events.append)
    again.replay(list(events))
    assert again.members.workers_wanted == len(again.members.workers) == 3
    assert list(again.record.messages) == list(job.record.messages)
