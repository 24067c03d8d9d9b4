"""The link of a series of jobs: to which job it leads, whoever was killed, and what is refused."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.trained import Trained, TrainedList, write_trained
from shoal.client.run.beginning import with_beginning
from shoal.client.run.series import Series
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.result import JobResult
from tests.ps.groups import IDS, Group

MODULE = "".join(f"def {n}(): pass\n" for n in ("custom_model", "loss", "optimizer", "feed"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(MODULE)


def configured(day, **fields):
    fields = {"training_data": f"{day}.csv", "job_dir": f"runs/{day}", **fields}
    return JobConfig(model_def="m.custom_model", latest="runs/latest", **fields).resolved()


def begin(series):
    """The job is begun in its folder, as run_job does it."""
    config = with_beginning(series.continued())
    folder = JobFolder(Path(config.job_dir))
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.path.mkdir(parents=True)
    folder.config.write_text(config.to_json())
    series.begins()
    return config


def finish(config, state="succeeded", **told):
    """What its master does at its end. Returns the result."""
    folder = JobFolder(Path(config.job_dir))
    group = Group(1)
    group.push(1, IDS[:5].copy())
    group.save(folder.path / "checkpoints", 1)
    root = open_storage(config.checkpoint_dir)
    last = Checkpoint(root, 1)
    sources = {config.training_data: Trained("", config.job_name)}
    write_trained(root, TrainedList(last.job, 1, last.nonce, sources))
    ended = {"job_name": config.job_name, "command": "train", "state": state, **told}
    folder.result.write_text(json.dumps(ended))
    return JobResult.read(folder.result)


def whole(day, state="succeeded", **fields):
    """A job of the series from its begin to its end; its configuration and what is said then."""
    with Series(configured(day, **fields)) as series:
        config = begin(series)
        return config, series.ended(finish(config, state))


def killed(day):
    """The client of a job is killed while its master runs; its configuration."""
    with Series(configured(day)) as series:
        return begin(series)


def newest():
    return os.readlink("runs/latest")


def test_a_job_that_is_resumed_later_does_not_take_the_link_from_a_newer_one():
    """Neither one that continued from the same job, nor a first one."""
    tuesday, _ = whole("tuesday", "failed")
    assert not os.path.lexists("runs/latest")
    monday, said = whole("monday")
    assert (newest(), said) == ("monday", "")
    failed, _ = whole("wednesday", "failed")
    assert failed.continue_from == f"{monday.checkpoint_dir}/checkpoint-00000001"
    whole("thursday")
    for config in (tuesday, failed):
        with Series(config) as series:
            series.begins()
            said = series.ended(finish(config))
        assert newest() == "thursday"
        assert "runs/latest still leads to thursday, which did not continue from this job" in said


def test_nor_does_one_whose_client_is_killed_while_it_is_resumed():
    tuesday, _ = whole("tuesday", "failed")
    whole("monday")
    with Series(tuesday) as series:
        series.begins()
    finish(tuesday)
    with Series(configured("wednesday")):
        assert newest() == "monday"


def test_a_job_is_the_next_one_though_its_forerunner_was_deleted():
    whole("monday")
    with Series(configured("tuesday")) as series:
        config = begin(series)
        shutil.rmtree("runs/monday")
        assert series.ended(finish(config)) == ""
    assert newest() == "tuesday"


@pytest.mark.parametrize("state", ["succeeded", "degraded"])
def test_a_job_that_is_held_back_never_gets_the_link(state):
    """Neither by its own client nor, where that was killed, by the next one; nor as the first."""
    held = {"state": state, "held_back": ["--publish-if auc>=0.8: auc is 0.7"]}
    with Series(configured("sunday")) as series:
        said = series.ended(finish(begin(series), **held))
    assert not os.path.lexists("runs/latest")
    assert "runs/latest is not made: --publish-if auc>=0.8: auc is 0.7. The next job" in said
    whole("monday")
    with Series(configured("tuesday")) as series:
        said = series.ended(finish(begin(series), **held))
    assert newest() == "monday"
    assert "runs/latest still leads to monday: --publish-if auc>=0.8: auc is 0.7" in said
    finish(killed("wednesday"), **held)
    with Series(configured("thursday")):
        assert newest() == "monday"


def test_nobody_enters_while_a_job_runs_whose_client_was_killed():
    config = killed("monday")
    with JobFolder(Path(config.job_dir)).lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(UserError, match=r"monday of the series runs.*shoal stop runs/monday"),
            Series(configured("tuesday")),
        ):
            pass
    finish(config)
    with Series(configured("tuesday")) as series:
        assert newest() == "monday"
        assert series.continued().continue_from
    with Series(configured("monday")) as series:
        assert series.done().state == "succeeded"


def test_the_link_stays_where_a_job_without_a_client_did_not_succeed():
    whole("monday")
    finish(killed("tuesday"), "failed")
    whole("wednesday", "failed")
    os.unlink("runs/latest")  # a new series
    with Series(configured("thursday")) as series:
        assert not os.path.lexists("runs/latest")
        assert series.continued().continue_from == ""


def test_other_data_in_the_folder_of_the_newest_job_are_not_told_as_done():
    whole("day", training_data="monday.csv")
    with Series(configured("day", training_data="monday.csv")) as series:
        assert series.done().state == "succeeded"
    words = r"has trained on .*monday.csv.*--job-dir runs/\$"
    with (
        Series(configured("day", training_data="tuesday.csv")) as series,
        pytest.raises(UserError, match=words),
    ):
        series.done()


def test_a_new_file_is_not_told_as_done_in_the_folder_of_the_newest_job():
    fields = {"training_data": "days", "only_new": True}
    Path("days").mkdir()
    Path("days/monday.csv").write_text("id\n1\n")
    config, _ = whole("day", **fields)
    root = open_storage(config.checkpoint_dir)
    last = Checkpoint(root, 1)
    known = {str(Path("days/monday.csv").absolute()): Trained("", "day")}
    write_trained(root, TrainedList(last.job, 1, last.nonce, known))
    with Series(configured("day", **fields)) as series:
        assert series.done().state == "succeeded"
        Path("days/tuesday.csv").write_text("id\n1\n")
        with pytest.raises(UserError, match=r"tuesday\.csv is not among"):
            series.done()


def test_a_newest_job_without_a_result_is_begun_anew_from_the_one_before():
    whole("monday")
    config, _ = whole("tuesday")
    JobFolder(Path(config.job_dir)).result.write_text('{"state": "succ')
    with Series(configured("tuesday", overwrite=True)) as series:
        assert series.done() is None
        assert with_beginning(series.continued()).continue_from == config.continue_from
