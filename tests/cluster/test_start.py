"""What a master does with the job folder that it finds on its volume."""

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.__main__ import RunningError
from shoal.master.cluster_start import take_folder as take


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path / "jobs" / "job")


def config(token="one", **changes):
    given = {"model_def": "m.custom_model", "training_data": "/t.csv", "image": "i", "token": token}
    given["job_name"] = "job"
    return JobConfig(**given | changes)


def take_folder(folder, config, *, resume, running=()):
    take(folder, config, resume=resume, runs=lambda name: name in running)


def left(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_a_new_folder_is_made_and_found_again_by_the_next_master(folder):
    take_folder(folder, config(), resume=False)
    folder.journal.mkdir()
    take_folder(folder, config(workers="3"), resume=False)
    assert left(folder) == ["job.json", "journal"]
    assert JobConfig.load(folder.config).num_workers == 3
    take_folder(folder, config(), resume=True)


def test_what_another_job_has_left_is_replaced_on_demand_only(folder):
    take_folder(folder, config(), resume=False)
    folder.journal.mkdir()
    (folder.path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="--job-dir: a job has run before"):
        take_folder(folder, config("two"), resume=False)
    other = config("two", overwrite=True, job_name="other")
    with pytest.raises(RunningError, match="--job-dir: job job is running in"):
        take_folder(folder, other, resume=False, running={"job"})
    assert left(folder) == ["checkpoints", "job.json", "journal"]
    take_folder(folder, config("two", overwrite=True), resume=False)
    assert left(folder) == ["job.json"]


def test_what_is_no_jobs_is_left_alone(folder):
    folder.path.mkdir(parents=True)
    (folder.path / "thesis.txt").touch()
    with pytest.raises(UserError, match="not the folder of a job"):
        take_folder(folder, config(overwrite=True), resume=False)
    assert left(folder) == ["thesis.txt"]


def test_there_must_be_a_journal_to_resume(folder):
    with pytest.raises(UserError, match="--resume: there is no job with a journal"):
        take_folder(folder, config(), resume=True)
