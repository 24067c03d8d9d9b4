"""Which Events a job's course leads to on its Job."""

from shoal.master.cluster.job_events import Seen, Told, end_of, news
from shoal.master.job.events import JobBegun, ProtectionChanged, ServerRegistered, WorkerRegistered
from shoal.master.job.job import Job
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from tests.master.strategies import config, exited, finish_next, w


def test_a_start_a_server_that_dies_and_a_lost_log_are_told_once():
    job = Job(config(workers="1", servers="2"))
    job.on(JobBegun(), 0.0)
    seen = [Seen.of(job, 0.0)]

    def told():
        seen.append(Seen.of(job, 0.0))
        return [(each.kind, each.reason, each.message) for each in news(seen[-2], seen[-1])]

    for index in range(2):
        job.on(ServerRegistered(ServerId(index), 0, f"ps-{index}"), 1.0)
    job.on(WorkerRegistered(w(0), 0), 1.0)
    assert told() == []
    finish_next(job, w(0), DataDescribed(training=(Source("t", 60),)))
    assert [reason for _, reason, _ in told()] == ["Started"]
    job.on(ProtectionChanged(ServerId(1), 1, 0.0, "the disk is full"), 2.0)
    assert told() == [("Warning", "Unprotected", "no log protects the updates of ps-1")]
    job.on(exited(ServerId(0)), 3.0)
    assert told() == [("Warning", "ServerRestarted", "ps-0 ended and is started again")]
    assert told() == []


def test_how_a_job_ends_is_told_with_its_reason():
    failed = end_of({"state": "failed", "failure": {"message": "no such column"}})
    assert failed == Told("Warning", "Failed", "no such column")
    for state, kind in (("succeeded", "Normal"), ("degraded", "Warning"), ("stopped", "Warning")):
        told = end_of({"state": state, "failure": None})
        assert (told.kind, told.reason.lower()) == (kind, state)
