"""`shoal export` makes what a job makes, of its checkpoint, whatever became of the job."""

import json
import resource
import subprocess
import sys

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.checkpoints.saved import Export
from tests.jobs.running import MODELS, ZOO, arguments_of, completed, environment_of, run

pytestmark = pytest.mark.job


def export(source, largest=-1, **fields):
    """`shoal export`; the process that has ended, and its errors' lines.

    largest: no file that it writes grows beyond so many bytes; -1: no limit.
    """
    line = arguments_of("export", **fields)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    done = subprocess.run(
        [*line, str(source)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard)),
    )
    assert "Traceback" not in done.stderr
    return done, done.stderr.splitlines()


def tables(folder):
    """id -> row, of each table of an export, after all of it was compared with its checksums."""
    found = Export(str(folder))
    found.verify()
    return {
        each["name"]: {
            id_: tuple(row)
            for ids, rows in found.rows(each["name"], each["dim"])
            for id_, row in zip(ids.tolist(), rows.tolist(), strict=True)
        }
        for each in found.manifest["tables"]
    }


def predictions(folder):
    users = tf.range(700, dtype=tf.int64)
    loaded = tf.saved_model.load(str(folder / "saved_model"))
    return loaded.serve({"user": users, "item": users % 45}).numpy()


def test_an_export_of_the_checkpoint_equals_the_jobs_own(trained, session_folder, tmp_path):
    job, theirs = session_folder / "trained", session_folder / "trained-out"
    done, _ = export(job, output=tmp_path / "model")
    assert done.returncode == 0, done.stderr
    ours = tmp_path / "model"
    assert tables(ours) == tables(theirs)
    dense = [pq.read_table(folder / "dense.parquet") for folder in (ours, theirs)]
    assert dense[0].equals(dense[1])
    np.testing.assert_array_equal(predictions(ours), predictions(theirs))
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (ours, theirs)]
    for manifest in manifests:
        for key in ("job_id", "files", "checksum"):
            manifest.pop(key, None)
    assert manifests[0] == manifests[1]

    # Of checkpoints elsewhere, to a URL, with tables that do not fit together.
    (job / "checkpoints").rename(tmp_path / "kept")
    try:
        url = f"file://{tmp_path}/model2"
        done, _ = export(
            f"file://{tmp_path}/kept",
            output=url,
            export="savedmodel",
            export_max_table_mb=0,
            model_zoo=ZOO,
            model_def="small.custom_model",
        )
        assert done.returncode == 0, done.stderr
    finally:
        (tmp_path / "kept").rename(job / "checkpoints")
    assert fsspec.filesystem("file").exists(f"{url}/manifest.json")
    assert tables(url) == tables(theirs)
    manifest = Export(url).manifest
    assert [table["in_models"] for table in manifest["tables"]] == [False, False]


def test_what_an_export_cannot_use_is_one_line(trained, session_folder, clicks, tmp_path):
    job = session_folder / "trained"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("mine")
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other"
    other.mkdir()
    damaged = tmp_path / "damaged"
    subprocess.run(["cp", "-r", str(job), str(damaged)], check=True)
    table = next(iter(sorted((damaged / "checkpoints").rglob("*.arrow"))))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 4
    table.write_bytes(content)
    model = {"model_zoo": ZOO, "model_def": "counting.custom_model", "training_data": clicks}
    for source, fields, words in (
        (session_folder / "trainde", {}, "there is no folder"),
        (session_folder / "trainde", {}, "did you mean trained"),
        (tmp_path / "empty", {}, "there is no checkpoint in"),
        (job / "checkpoints", {"number": 99}, "there is no checkpoint 99"),
        (job, {"output": tmp_path / "mine"}, "shoal did not write its content"),
        (job, {"output": session_folder / "trained-out"}, "replace it with --overwrite"),
        (job, {"output": "/proc/model"}, "cannot write /proc/model"),
        (job, {"output": "nosuch://model"}, "Protocol not known"),
        (job, {"export": "onnx"}, "--export must list"),
        (damaged, {}, str(table)),
        (job, {**model, "model_def": "broken.custom_model"}, "the model has the tables"),
    ):
        done, lines = export(source, **({"output": tmp_path / "out"} | fields))
        assert done.returncode == 2, (source, done.stdout, done.stderr)
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("Error: ")
        assert words in lines[0]
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "mine" / "precious").read_text() == "mine"


def test_a_failed_export_leaves_what_it_can_and_names_the_way_out(session_folder, clicks):
    output = session_folder / "late-out"
    ended = run(
        "train",
        session_folder,
        "late",
        environment={"BREAK": "late export"},
        export="keras",
        model_def="broken.custom_model",
        training_data=clicks,
        output=output,
    )
    assert ended.code == 1
    assert ended.result["state"] == "failed"
    job = session_folder / "late"
    newest = ended.result["checkpoints"]["kept"][-1]["number"]
    way_out = f"newest checkpoint, number {newest}: shoal export {job} --output FOLDER"
    assert way_out in ended.err
    assert "the scale is not 1" in Export(str(output)).manifest["partial"]
    assert all(tables(output).values())
    assert not (output / "saved_model").exists()

    line = [sys.executable, "-m", "shoal", "export", str(job), "--export", "savedmodel"]
    line += ["--output", str(session_folder / "late-saved")]
    done = completed(line)
    assert done.returncode == 0, done.stderr
    assert tables(session_folder / "late-saved") == tables(output)


@pytest.mark.parametrize(
    ("largest", "checkpoints"),
    [
        pytest.param(5_000, {}, id="no room for the models"),
        pytest.param(10, {"checkpoint_seconds": 0}, id="no checkpoints"),
        pytest.param(10, {"checkpoint_seconds": 0, "sync": True}, id="sync, no checkpoints"),
    ],
)
def test_a_disk_that_is_full_at_the_export_costs_no_model(tmp_path, clicks, largest, checkpoints):
    """Where no checkpoint was asked for, one is taken before the job fails."""
    output, folder = tmp_path / "out", tmp_path / "full"
    fields = {"model_def": "broken.custom_model", "training_data": clicks, "output": output}
    fields |= MODELS | {"storage_patience_seconds": 1}
    environment = {"BREAK": "full disk", "LARGEST": str(largest)}
    ended = run("train", tmp_path, "full", environment=environment, **fields, **checkpoints)
    assert ended.code == 1, ended.out + ended.err
    assert (ended.result["state"], ended.result["failure"]["kind"]) == ("failed", "ENVIRONMENT")
    assert "Traceback" not in ended.err
    assert f"--output: cannot write {output}: [Errno 27] File too large" in ended.err
    kept = ended.result["checkpoints"]["kept"]
    assert kept
    way_out = f"newest checkpoint, number {kept[-1]['number']}: shoal export {folder} --output"
    assert f"What was trained is in the job's {way_out}" in ended.err
    assert ended.ledger["trained_once"] == 600

    done, _ = export(folder, output=tmp_path / "later", export="none")
    assert done.returncode == 0, done.stderr
    later = tables(tmp_path / "later")
    assert set(later["users"]) == set(range(600))
    if largest == 5_000:
        assert "it has tables and dense values only" in ended.err
        assert tables(output) == later
        return
    assert not output.exists()
    line = arguments_of("train", resume=folder)
    environment = environment_of(**{**environment, "LARGEST": "-1"})
    done = completed(line, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = json.loads((folder / "result.json").read_text())["ledger"]
    assert (ledger["trained_once"], ledger["repeated"]) == (600, 0)
    assert tables(output) == later


def test_shoal_export_on_a_full_disk_is_no_mistake_of_the_users(trained, session_folder, tmp_path):
    job = session_folder / "trained"
    done, lines = export(job, largest=6_000, output=tmp_path / "out")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert len(lines) == 1
    assert lines[0].startswith(f"Error: --output: cannot write {tmp_path}/out: [Errno 27] File too")
    assert "run the command again" in lines[0]
    done, _ = export(job, output=tmp_path / "out2")
    assert done.returncode == 0, done.stderr
