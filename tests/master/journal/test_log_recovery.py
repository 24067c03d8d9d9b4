"""What is told of a log of updates that cannot be done again, and that its loss is counted."""

from contextlib import closing

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints.folders import folder_name
from shoal.master.job.events import CheckpointsFound, JobBegun, ServerRegistered, Taken
from shoal.master.journal.audit import audit
from shoal.master.journal.journal import Journal
from shoal.master.journal.log_recovery import FromLog, checkpoint_of_log
from shoal.master.journal.resume import resume_job
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.units import Source
from shoal.proto.values.routing import Routing
from tests.master.strategies import config, finish_next, register, w

LOG = {"durability": "log", "checkpoint_steps": 10}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        (
            LOG | {"servers": "2", "durability": "peer"},
            "it was in the memory of the servers, which are gone",
        ),
        (LOG, "there is none in the job folder"),
    ],
)
def test_why_there_is_nothing_to_be_done_again(tmp_path, changes, why):
    before = config(**changes)
    found = checkpoint_of_log(JobFolder(tmp_path), before, before, 0, {}, Routing.even(1))
    assert found == FromLog(None, why=why)


def test_what_was_in_the_memory_of_several_servers_is_counted_as_lost(tmp_path):
    folder = JobFolder(tmp_path)
    configured = config(workers="1", servers="2", **LOG | {"durability": "peer"})
    with closing(Journal(folder.journal, configured)) as journal:
        job = journal.restore()
        register(job, DataDescribed(training=(Source("t", 40),)))
        for _ in range(3):  # tasks of 10 records, two minibatches each
            finish_next(job, w(0), Done())
    with closing(Journal(folder.journal, configured)) as journal:
        job = journal.restore()
        resume_job(job, configured, journal, "again", 9.0, folder)
    assert "warning: not all of the log of updates is in it: it was in the memory" in "\n".join(
        job.record.messages
    )
    report = audit(folder)
    assert report.problems == []
    assert (report.records["lost"], report.records["never"]) == (30, 40)
    assert report.updates["lost"] == 6


def test_a_log_of_an_earlier_course_is_left_alone_when_the_job_is_resumed_once_more(tmp_path):
    """A job resumed ends before all its servers have registered: the log is that of before."""
    folder = JobFolder(tmp_path)
    configured = config(workers="1", servers="2", **LOG | {"durability": "peer"})
    with closing(Journal(folder.journal, configured)) as journal:
        job = journal.restore()
        register(job, DataDescribed(training=(Source("t", 40),)))
        finish_next(job, w(0), Done())
        resume_job(job, configured, journal, "again", 9.0, folder)
        job.on(JobBegun(), 10.0)
        incarnation = job.members.servers[ServerId(1)].incarnation
        job.on(ServerRegistered(ServerId(1), incarnation, "host:1"), 11.0)
        told = len(job.record.messages)
        resume_job(job, configured, journal, "once more", 12.0, folder)
        assert not any("the log of updates" in text for text in [*job.record.messages][told:])
        # As soon as all have registered, workers may have pushed.
        job.on(JobBegun(), 13.0)
        for server in job.members.servers:
            job.on(
                ServerRegistered(server, job.members.servers[server].incarnation, "host:9"), 14.0
            )
        resume_job(job, configured, journal, "for the third time", 15.0, folder)
        assert "not all of the log of updates is in it" in job.record.messages[-1]


def test_a_checkpoint_that_the_journal_does_not_know_is_restored_by_nobody(tmp_path):
    """The master died when it was whole, before that was written: what is in it is trained anew."""
    folder = JobFolder(tmp_path)
    configured = config(checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_steps=10)
    (tmp_path / "checkpoints" / folder_name(1)).mkdir(parents=True)
    with closing(Journal(folder.journal, configured)) as journal:
        job = journal.restore()
        register(job, DataDescribed(training=(Source("t", 40),)))
        resume_job(job, configured, journal, "again", 9.0, folder)
        job.on(CheckpointsFound([Taken(1, 10, 100, 0.1)]), 1.0)
        assert job.checkpoints.kept.all == []
