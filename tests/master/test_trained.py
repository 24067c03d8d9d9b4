"""What stands beside a job's checkpoints when it has come to its end."""

from __future__ import annotations

import pytest

from shoal.checkpoints.trained import NAME, TrainedList, trained_list
from shoal.files.described import DescribedSources
from shoal.files.storage import open_storage
from shoal.master.job import events
from shoal.master.shared_job import SharedJob
from shoal.master.trained import keep_trained
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.units import Source
from tests.master.strategies import begun, confirm, finish_next, w


def ended(tmp_path, *, saved=True, **fields):
    """A job that has succeeded, with two checkpoints if the last one was saved, and else one."""
    described = DataDescribed(training=(Source("a.csv", 10), Source("b.csv", 10)))
    fields = {"checkpoint_steps": 5, "output": "out", "checkpoint_dir": str(tmp_path), **fields}
    job = begun(described, token="t", **fields)
    finish_next(job, w(0), Done())
    job.tick(1.0)
    if not job.checkpoints.under_way:
        finish_next(job, w(0), Done(), version=5)
        job.tick(1.0)
    else:
        finish_next(job, w(0), Done())
    job.on(events.CheckpointBegun(), 1.0)
    job.on(events.CheckpointTaken(events.Taken(1, 5, 100, 0.1, "first"), False), 1.0)
    for now in (2.0, 20.0):
        job.tick(now)
        if not job.phases.saves:
            break
        job.on(events.CheckpointBegun(), now)
        if saved:
            job.on(events.CheckpointTaken(events.Taken(2, 9, 100, 0.1, "last"), True), now)
        else:
            job.on(events.CheckpointFailed("the disk is full", True), now)
    finish_next(job, w(0), Done())  # the export
    confirm(job, 21.0)
    assert job.phases.phase.complete
    return job


def told(job, tmp_path):
    keep_trained(SharedJob(job), DescribedSources(open_storage(str(tmp_path / "index"))))
    return trained_list(open_storage(str(tmp_path)))


def test_it_names_the_checkpoint_that_has_all_that_was_trained(tmp_path):
    found = told(job := ended(tmp_path), tmp_path)
    assert (found.job, found.number, found.nonce) == (job.config.job_id, 2, "last")
    assert sorted(found.sources) == ["a.csv", "b.csv"]


def test_it_names_none_where_the_last_one_could_not_be_taken(tmp_path):
    found = told(ended(tmp_path, saved=False), tmp_path)
    assert (found.number, found.nonce) == (0, "")


@pytest.mark.parametrize("only_new", [False, True])
def test_it_has_no_sources_where_those_of_the_forerunner_are_not_known(tmp_path, only_new):
    """Else the job after this one would train the forerunner's files again."""
    forerunner = str(tmp_path / "gone" / "checkpoint-00000001")
    job = ended(tmp_path, continue_from=forerunner, only_new=only_new)
    assert told(job, tmp_path) == TrainedList(job.config.job_id, 2, "last", None)


def test_a_job_that_has_not_succeeded_leaves_none(tmp_path):
    job = begun(DataDescribed(training=(Source("t", 1),)), checkpoint_dir=str(tmp_path))
    job.on(events.JobStopped("SIGINT"), 1.0)
    assert told(job, tmp_path) is None
    assert not (tmp_path / NAME).exists()
