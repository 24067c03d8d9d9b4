"""Checkpoints of real jobs: what is in them, and that trouble with them stops no job."""

import shutil

import pytest

from shoal.checkpoints import contents
from shoal.checkpoints.folders import Checkpoint, numbers
from shoal.config.job import JobConfig
from shoal.files.storage import LocalStorage
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob

pytestmark = pytest.mark.job


def counted(checkpoint):
    """(records by the dense weight, {id: times}) of a checkpoint of zoo/counting.py."""
    counts, total = {}, []
    for shard in range(len(checkpoint.shards)):
        for columns in contents.table_pieces(checkpoint, shard, 0):
            counts.update(zip(columns["id"].tolist(), columns["values"][:, 0], strict=True))
        total += contents.dense_slices(checkpoint, shard)["values"].tolist()
    return total, counts


def test_a_job_leaves_checkpoints_while_it_trains_and_at_its_end(numbered, tmp_path):
    training, validation = numbered
    root = LocalStorage(tmp_path / "saved")
    with RunningJob(
        "train",
        tmp_path,
        "saving",
        environment={"GATES": "step-10"},
        training_data=training,
        validation_data=validation,
        output=tmp_path / "out",
        servers="2",
        checkpoint_steps=5,
        checkpoint_dir=tmp_path / "saved",
        keep_checkpoint_max=2,
        num_minibatches_per_task=4,
        **SERIAL,
    ) as job:
        job.at_gate("step-10")
        early = job.wait_taken(location=root.location)
        total, counts = counted(early)
        # Taken between the parts of a push, a shard has one push more than the other.
        pushed = [shard["pushes"][0]["sequence"] for shard in early.shards]
        assert total == [10 * sequence for sequence in pushed]
        assert 5 <= min(pushed) <= max(pushed) == early.version <= min(pushed) + 1
        assert 10 * min(pushed) <= sum(counts.values()) <= 10 * max(pushed)
        (tmp_path / "saved" / "trained.json.gz" / "in-its-way").mkdir(parents=True)
        job.open("step-10")
        ended = job.ended().succeeded()
    (told,) = (text for text in ended.result["messages"] if "--only-new cannot follow" in text)
    assert "trained.json.gz" in told
    found = numbers(root)
    assert len(found) == 2
    assert [each["number"] for each in ended.result["checkpoints"]["kept"]] == found
    assert ended.result["checkpoints"]["failed"] == 0
    last = Checkpoint(root, found[-1])
    contents.verify(last)
    assert last.ledger["records"]["trained_once"] == 480
    assert counted(last) == applied(tmp_path / "out")
    assert f"newest number {found[-1]}, version 48" in ended.out


def test_a_folder_that_vanishes_is_made_anew_and_one_that_cannot_be_costs_warnings(
    numbered, tmp_path
):
    with RunningJob(
        "train",
        tmp_path,
        "vanished",
        environment={"GATES": "step-10 step-15 step-25"},
        training_data=numbered[0],
        checkpoint_steps=5,
        storage_patience_seconds=1,
        **SERIAL,
    ) as job:
        folder = job.folder.path / "checkpoints"
        # Due at steps 5 and 10: at each gate the one before is complete, and no other is due.
        job.at_gate("step-10")
        first = job.wait_taken(1)
        assert first.job == JobConfig.load(job.folder.config).job_id
        shutil.rmtree(folder)
        job.open("step-10")
        job.at_gate("step-15")
        assert job.wait_taken(2).number > first.number
        shutil.rmtree(folder)
        folder.write_text("not a folder")
        job.open("step-15")
        job.at_gate("step-25")
        job.wait_status(
            "a failed one", lambda status: any("could not be taken" in m for m in status.messages)
        )
        job.open("step-25")
        ended = job.ended().succeeded()
    checkpoints = ended.result["checkpoints"]
    assert checkpoints["taken"] >= 2
    assert checkpoints["failed"] >= 2
    assert "vanished/checkpoints: " in checkpoints["last_failure"]
    assert "warning: a checkpoint could not be taken" in ended.out
    assert " FAILED" in ended.out
