"""Which checkpoint a job continues from, with which model, and which sources are new to it."""

import dataclasses
import gzip
import json
import shutil

import pytest

from shoal.checkpoints.continued import differences, forerunner_checkpoint, read_trained, refusal
from shoal.checkpoints.folders import Checkpoint, begin
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.saved import open_saved
from shoal.checkpoints.trained import (
    NAME,
    Trained,
    TrainedList,
    copy_trained,
    only_new,
    trained_list,
    write_trained,
)
from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from tests.ps.groups import IDS, Group, spec


@pytest.fixture
def folder(tmp_path):
    """That of a job's checkpoints, of which there are two whole ones and one under way."""
    group = Group(2)
    for number in (1, 2):
        group.push(number, IDS[:50].copy())
        group.save(tmp_path / "job" / "checkpoints", number)
    begin(open_storage(str(tmp_path / "job" / "checkpoints")), 3, "")
    return tmp_path / "job" / "checkpoints"


def test_the_newest_whole_checkpoint_of_a_job_of_a_folder_or_the_one_named(folder):
    for location in (folder.parent, folder, folder / "checkpoint-00000002", f"{folder}/"):
        assert forerunner_checkpoint(str(location)).number == 2
    assert forerunner_checkpoint(str(folder / "checkpoint-00000001")).number == 1
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        forerunner_checkpoint(str(folder.parent.parent))


def damages(folder):
    """Ways in which a checkpoint comes to harm, each with the name of the file that tells it."""

    def flip(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    rows = next(folder.glob("*.arrow"))
    shard = next(folder.glob("server-*.json"))
    manifest = folder / "manifest.json"
    return [
        (rows.unlink, rows),
        (lambda: rows.write_bytes(rows.read_bytes()[:-1]), rows),
        (lambda: flip(shard), shard),
        (lambda: flip(manifest), manifest),
        (manifest.unlink, manifest),
    ]


@pytest.mark.parametrize("way", range(5))
def test_a_damaged_newest_checkpoint_is_refused_by_name_and_no_older_one_taken(folder, way):
    newest = folder / "checkpoint-00000002"
    damage, told = damages(newest)[way]
    damage()
    for location in (folder.parent, folder, newest):
        with pytest.raises(CheckpointError, match=told.name):
            forerunner_checkpoint(str(location))
    with pytest.raises(UserError, match=rf"--restore-from: .*{told.name}"):
        open_saved(str(folder))
    assert forerunner_checkpoint(str(folder / "checkpoint-00000001")).number == 1


def test_the_checkpoint_that_a_job_ended_with_is_taken_or_none(folder):
    """Where the newest one was removed, or none has all that was trained, it is not another one."""
    root = open_storage(str(folder))
    first, last = (Checkpoint(root, number) for number in (1, 2))
    write_trained(root, TrainedList(last.job, 2, last.nonce, {}))
    assert forerunner_checkpoint(str(folder)).number == 2
    with pytest.raises(UserError, match=r"does not tell what is in .*checkpoint-00000001"):
        read_trained(str(folder / "checkpoint-00000001"))
    shutil.rmtree(folder / "checkpoint-00000002")
    for location in (folder, folder.parent):
        with pytest.raises(CheckpointError, match="checkpoint-00000002 is missing, which has all"):
            forerunner_checkpoint(str(location))
    with pytest.raises(UserError, match=r"--restore-from: .*checkpoint-00000002 is missing"):
        open_saved(str(folder))
    write_trained(root, TrainedList(first.job, 0, "", {}))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* has all that its job"):
        forerunner_checkpoint(str(folder))
    write_trained(root, TrainedList("another job", 2, last.nonce, {}))
    assert forerunner_checkpoint(str(folder)).number == 1
    (folder / NAME).write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{NAME} is damaged"):
        forerunner_checkpoint(str(folder))


def changed(**fields):
    model = spec()
    for name, value in fields.items():
        setattr(model.tables[0], name, value)
    return model


def test_what_a_model_may_change():
    adam = OptimizerSpec.from_keras("Adam", {"learning_rate": 0.5}).to_json()
    for fields in (
        {"admit_after": 3},
        {"expire_after": 60, "max_rows": 100},
        {"seed": 9, "initializer": InitializerSpec("normal").to_json()},
        {"optimizer": adam},
    ):
        assert differences(spec(), changed(**fields)) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dim": 4}, "table 'items' has dim 4, and 3 there"),
        ({"name": "things"}, "table 'things' where the checkpoint has 'items'"),
        ({"value_dtype": "bfloat16"}, "has bfloat16 rows, and float32 there"),
        ({"vocabulary": 10}, "takes ids below 10, and has ids of any value there"),
        (
            {"optimizer": OptimizerSpec("adagrad").to_json()},
            "the optimizer of table 'items' is adagrad, and adam there",
        ),
    ],
)
def test_what_it_may_not(folder, fields, words):
    found = differences(spec(), changed(**fields))
    assert len(found) == 1
    assert words in found[0]
    told = str(refusal(forerunner_checkpoint(str(folder)), found))
    assert words in told
    assert f"shoal checkpoint migrate {folder}/checkpoint-00000002" in told


def test_dense_variables_are_the_same_in_the_same_places():
    more = spec()
    more.trainable.append(pb.VariableSpec(name="bias", shape=[2]))
    assert differences(spec(), more) == ["variable 'bias' where the checkpoint has none"]
    assert differences(more, spec()) == ["variable none where the checkpoint has 'bias'"]
    longer = spec()
    longer.non_trainable[0].shape[0] += 1
    (found,) = differences(spec(), longer)
    assert found.startswith("variable mean has shape")
    lacks = spec()
    del lacks.tables[1]
    assert differences(spec(), lacks) == ["table none where the checkpoint has 'unused'"]


def test_what_was_trained_is_told_to_the_jobs_to_come(folder):
    sources = {"/days/a.csv": Trained("1", "monday"), "b": Trained("", "tuesday")}
    root = open_storage(str(folder))
    with pytest.raises(UserError, match=rf"there is no {folder}/{NAME}.*or by its --resume"):
        read_trained(str(folder))
    newest = forerunner_checkpoint(str(folder))
    copy_trained(newest, root, "x", 1, "")  # of nothing
    assert not (folder / NAME).exists()
    told = TrainedList(newest.job, newest.number, newest.nonce, sources)
    write_trained(root, told)
    assert read_trained(str(folder)) == sources
    target = open_storage(str(folder.parent / "migrated"))
    copy_trained(newest, target, "x", 1, "n")
    assert trained_list(target) == TrainedList("x", 1, "n", sources)
    write_trained(root, dataclasses.replace(told, job="another"))
    with pytest.raises(UserError, match="does not tell what is in"):
        read_trained(str(folder))
    write_trained(root, dataclasses.replace(told, sources=None))
    with pytest.raises(UserError, match="continued from a job of which that was not known"):
        read_trained(str(folder))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"{"),
        gzip.compress(b"[]"),
        gzip.compress(json.dumps({"format": 2, "job": "", "sources": {"a": [1]}}).encode()),
        gzip.compress(json.dumps({"format": 2}).encode())[:-3],
    ],
    # Of names: the content has the time at which it was made, which is another in each process.
    ids=["empty", "no gzip", "half an object", "a list", "half a source", "cut"],
)
def test_a_damaged_list_is_told_by_its_name(folder, content):
    (folder / NAME).write_bytes(content)
    with pytest.raises(UserError, match=rf"--continue-from: {folder}/{NAME} is damaged"):
        read_trained(str(folder))


def test_sources_are_new_by_name_and_changed_by_stamp():
    before = {"a": Trained("1", "monday"), "b": Trained("", "monday"), "c": Trained("3", "tuesday")}
    assert only_new(["a", "b", "d"], {"a": "1", "b": "7"}, before) == {"d"}
    assert only_new([], {}, before) == set()
    with pytest.raises(
        UserError, match=r"--only-new: c changed after job tuesday had trained on it"
    ):
        only_new(["a", "b", "c"], {"a": "1", "c": "4"}, before)
    with pytest.raises(UserError, match=r"a, and 1 more files, changed after job monday"):
        only_new(["a", "c"], {"a": "2", "c": "4"}, before)
