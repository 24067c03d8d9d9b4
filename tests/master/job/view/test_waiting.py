"""What a job waits for is told in words, at every phase of its start and after deaths."""

import pytest

from shoal.master.job import events
from shoal.master.job.job import Job
from shoal.master.job.view.status import status_message
from shoal.master.job.view.waiting import waits_for
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, config, exited, finish_next, take, w


@pytest.mark.parametrize(
    ("engine", "name"),
    [("tensorflow", "TensorFlow"), ("torch", "PyTorch"), ("auto", "the framework")],
)
def test_a_job_says_what_it_waits_for(engine, name):
    job = Job(config(workers="2", servers="2", min_workers=2, engine=engine))
    job.on(events.JobBegun(), 0.0)

    def told():
        return status_message(job, 1.0).waits_for

    assert told() == "ps-0, ps-1 to start"
    job.on(events.ServerRegistered(ServerId(0), 0, "ps-0"), 0.0)
    assert told() == "ps-1 to start"
    job.on(events.ServerRegistered(ServerId(1), 0, "ps-1"), 0.0)
    assert told() == "worker-0, worker-1 to start"
    job.process_started(Start(w(0), 0), 0.0)
    job.process_started(Start(w(1), 0), 0.0)
    assert told() == f"{name} to start in worker-0, worker-1"
    job.on(events.WorkerRegistered(w(0), 0), 0.0)
    assert told() == "a worker to build the model and to look at the data"
    finish_next(job, w(0), DataDescribed(training=(Source("t", 60),)))
    assert told() == "2 workers (--min-workers), of which 1 are here"
    job.on(events.WorkerRegistered(w(1), 0), 1.0)
    take(job, w(0))
    assert told() == f"the first training step, for which {name} prepares the model"
    job.record.loss.add(1.0, 0.5, 1)
    assert told() == ""
    job.on(exited(ServerId(1)), 2.0)
    assert told().startswith("ps-1 to ")
    job.on(events.JobStopped("enough"), 3.0)
    assert told() == ""


def test_the_servers_are_waited_for_at_the_end():
    job = begun(DataDescribed(training=(Source("t", 10),)))
    job.on(events.TaskReported(w(0), 0, take(job, w(0)).id, Done(), 0), 1.0)
    assert job.phases.phase == Phase.CONFIRMING
    assert waits_for(job) == "the servers to say that they have every update"


def test_what_servers_restore_is_told_with_how_far_it_is():
    job = Job(config(servers="5"))
    job.on(events.JobBegun(), 0.0)

    def told():
        status = status_message(job, 1.0)
        return status.waits_for, status.waits_progress

    def progress(server, what, done=0, total=0):
        told = pb.ServerProgress(what=what, done=done, total=total)
        job.server_progressed(ServerId(server), 0, told, 1.0)

    for server in range(1, 5):
        job.on(events.ServerRegistered(ServerId(server), 0, "there"), 0.0)
    progress(0, "restore checkpoint 12", 3_100_000_000, 9_800_000_000)
    assert told() == ("ps-0, which restores checkpoint 12", "3.1 of 9.8 GB")
    # One that is there may still read rows, as soon as it knows its tables.
    progress(1, "read the rows of --restore-from", 2_000_000)
    both = "ps-0, which restores checkpoint 12, and ps-1, which reads the rows of --restore-from"
    assert told() == (both, "3.1 GB")
    progress(1, "restore checkpoint 12", 100_000_000, 200_000_000)
    assert told() == ("ps-0, ps-1, which restore checkpoint 12", "3.2 of 10.0 GB")
    job.on(exited(ServerId(2)), 1.0)
    waits = "ps-0, ps-1, which restore checkpoint 12, and ps-2 to start"
    assert told() == (waits, "3.2 of 10.0 GB")
    job.on(events.ServerRegistered(ServerId(2), 1, "there"), 1.0)
    # An incarnation that has died has restored nothing.
    job.on(exited(ServerId(1)), 1.0)
    assert told()[0] == "ps-0, which restores checkpoint 12, and ps-1 to start"
    job.on(events.ServerRegistered(ServerId(1), 1, "there"), 1.0)
    job.on(events.ServerRegistered(ServerId(0), 0, "there"), 2.0)
    assert told()[1] == ""
    progress(0, "")
    assert "ps-0" not in told()[0]
