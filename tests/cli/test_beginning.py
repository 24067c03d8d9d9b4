"""What a job begins with: which checkpoint of another job, or why none."""

import json
import shutil

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints.folders import Checkpoint, folder_name
from shoal.client.run.beginning import with_beginning
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.files.storage import open_storage
from tests.ps.groups import IDS, Group


def configured(path, **fields):
    fields = {"model_def": "m.custom_model", "training_data": "t.csv", **fields}
    return JobConfig(**fields, job_dir=str(path)).resolved()


@pytest.fixture
def before(tmp_path):
    """The folder of a job that has succeeded, with two checkpoints."""
    folder = JobFolder(tmp_path / "before")
    config = configured(folder.path)
    group = Group(1)
    for number in (1, 2):
        group.push(number, IDS[:5].copy())
        group.save(folder.path / "checkpoints", number)
    folder.config.write_text(config.to_json())
    newest = Checkpoint(open_storage(config.checkpoint_dir), 2)
    kept = [{"number": 2, "nonce": newest.nonce}]
    result = {"state": "succeeded", "job_name": "before", "command": "train"}
    folder.result.write_text(json.dumps(result | {"checkpoints": {"kept": kept}}))
    return folder


def test_a_job_goes_on_from_the_checkpoint_that_the_result_names_or_is_refused(before, tmp_path):
    """Also without a list beside the checkpoints; a folder of them is refused alike."""
    checkpoints = before.path / "checkpoints"
    for flag in ("continue_from", "restore_from"):
        of_job = before.path if flag == "continue_from" else checkpoints
        found = with_beginning(configured(tmp_path / "next", **{flag: str(of_job)}))
        assert getattr(found, flag) == str(checkpoints / folder_name(2))
    manifest = checkpoints / folder_name(2) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    for flag, where in (
        ("continue_from", before.path),
        ("continue_from", checkpoints),
        ("restore_from", checkpoints),
    ):
        config = configured(tmp_path / "next", **{flag: str(where)})
        words = rf"{manifest}: damaged.*name the folder of one"
        with pytest.raises(UserError, match=words) as told:
            with_beginning(config)
        assert str(told.value).startswith(f"--{flag.replace('_', '-')}: ")
    shutil.rmtree(manifest.parent)
    with pytest.raises(UserError, match="the job ended with checkpoint 2, which is missing"):
        with_beginning(configured(tmp_path / "next", continue_from=str(before.path)))


def test_a_folder_of_checkpoints_may_be_called_nearly_as_one(before, tmp_path):
    """Its last name begins as one's does: the advice is still that of a folder of them."""
    named = before.path / "checkpoint-s"
    (before.path / "checkpoints").rename(named)
    (named / folder_name(2) / "manifest.json").write_bytes(b"")
    with pytest.raises(UserError, match="name the folder of one"):
        with_beginning(configured(tmp_path / "next", continue_from=str(named)))
