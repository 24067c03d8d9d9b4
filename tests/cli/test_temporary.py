"""The temporary folder of a job's processes: there while they run, and never left behind."""

import json
import os
import tempfile

import pytest
from click.testing import CliRunner

from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.cli.main import main
from shoal.client.run.local import run_job
from shoal.client.show.display import Display
from shoal.config.job import JobConfig

ARGUMENTS = ["train", "--model-def", "model.custom_model", "--training-data", "train.csv"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job").mkdir()
    return JobFolder(tmp_path / "job")


@pytest.fixture
def users(tmp_path, monkeypatch):
    """The user's temporary folder, empty."""
    path = tmp_path / "users"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def test_it_is_made_in_the_users_told_to_processes_and_removed_whole(folder, users):
    assert temporary.environment(folder) == {}
    temporary.make(folder)
    (made,) = users.iterdir()
    assert temporary.environment(folder) == {"TMPDIR": str(made)}
    (made / "__autograph_generated_file.py").touch()
    (made / "more").mkdir()
    for _ in range(2):  # master and client both do it
        temporary.remove(folder)
        assert not list(users.iterdir())
        assert not folder.temporary.exists()


def test_one_that_was_left_makes_room_for_the_next(folder, users):
    temporary.make(folder)
    (left,) = users.iterdir()
    temporary.make(folder)
    (made,) = users.iterdir()
    assert made != left


def test_a_folder_that_is_not_a_jobs_is_kept(folder, users):
    other = users / "other"
    other.mkdir()
    link = users / "shoal-link"
    link.symlink_to(other)
    for path in (other, link):
        folder.temporary.write_text(json.dumps({"path": str(path)}))
        temporary.remove(folder)
        assert other.is_dir()
        assert not folder.temporary.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"path": 3}', '{"path": "/shoal-that/is/gone"}'])
def test_a_file_that_names_none_is_taken_for_none(folder, text):
    folder.temporary.write_text(text)
    assert temporary.environment(folder) == {}
    temporary.remove(folder)
    assert not folder.temporary.exists()


def test_a_job_has_one_while_it_runs(project, scripted, users):
    """And removes that of the job before it in its folder, which was killed with its master."""
    scripted("succeed")
    seen = []

    class Looking(Display):
        def event(self, text):
            pass

        def draw(self, status):
            seen.extend(os.listdir(users))

    left = JobFolder(project / "shoal-jobs" / "model")
    left.path.mkdir(parents=True)
    left.config.write_text("{}")
    temporary.make(left)
    before = os.listdir(users)
    run_job(
        JobConfig(model_def="model.custom_model", training_data="train.csv", overwrite=True),
        Looking(),
    )
    assert len(set(seen)) == 1
    assert set(seen).isdisjoint(before)
    assert os.listdir(users) == []


def test_a_master_that_dies_leaves_none(project, scripted, users):
    scripted("orphan")
    assert CliRunner().invoke(main, ARGUMENTS).exit_code == 1
    assert os.listdir(users) == []


def test_one_that_cannot_be_made_is_told_before_the_start(project, users):
    users.rmdir()
    result = CliRunner().invoke(main, ARGUMENTS)
    assert result.exit_code == 2
    assert "temporary folder cannot be made" in result.stderr
    assert str(users) in result.stderr
    assert "set TMPDIR" in result.stderr
    assert not (project / "shoal-jobs" / "model" / "logs" / "master.log").exists()
