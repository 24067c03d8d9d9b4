"""Versions for TensorFlow Serving predict as followers and as the job do."""

import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.deltas import to_versions, walking
from shoal.deltas.to_versions import Versions, follow_into
from shoal.worker.engines.tensorflow.outputs.versions import save
from tests.deltas.history import History
from tests.deltas.versions import newest, whole
from tests.serve.models import Predicting
from tests.waiting import until
from tests.worker.networks import as_batch, batches
from tests.worker.outputs.builds import BUILDS, trained
from tests.worker.outputs.live import FEATURES, Live, expected

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(walking, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(to_versions, "PAUSE_SECONDS", 0.01)


def written(live, folder, number, max_table_mb=512):
    versions = Versions(str(folder))
    try:
        saved = partial(save, max_table_mb=max_table_mb)
        follow_into(live.root.location, versions, saved, 1e-3, number)
    finally:
        versions.close()


def predicted(folder, features):
    """What the newest version predicts, with nothing but TensorFlow."""
    model = tf.saved_model.load(str(newest(folder)))
    assert [*model.signatures] == ["serving_default"]
    given = {name: tf.constant(each) for name, each in features.items()}
    return {n: each.numpy() for n, each in model.signatures["serving_default"](**given).items()}


@pytest.mark.parametrize(
    "build", ["functional with statistics", "subclassed", "functional with preprocessing"]
)
def test_a_version_predicts_as_the_job_and_a_follower(served, tmp_path, build):
    live = Live(tmp_path / "live", trained(served, BUILDS[build]))
    live.publish()
    written(live, tmp_path / "models", 1)
    for step, batch in enumerate(batches(), 1):
        live.model.train_batch(as_batch(*batch), step)
    live.publish(base=False)
    written(live, tmp_path / "models", 2)
    assert whole(tmp_path / "models") == [1, 2]
    with shoal.follow(live.root.location, until=2) as follower:
        assert follower.wait(2, 300)
        followed = follower.predict(FEATURES)
    found = predicted(tmp_path / "models", FEATURES)["output"]
    np.testing.assert_allclose(found, followed, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found, expected(live), rtol=1e-5, atol=1e-6)
    shutil.rmtree(tmp_path / "models" / "2")
    assert np.abs(found - predicted(tmp_path / "models", FEATURES)["output"]).max() > 1e-4


def scores(history, users, lists):
    return [history.score(*each) for each in zip(users, lists, strict=True)]


def features_of(users, lists):
    return {
        "user": np.array(users),
        "tags_values": np.concatenate(lists),
        "tags_row_splits": np.cumsum([0, *map(len, lists)]),
        "word": np.array(["a"] * len(users)),
    }


USERS, LISTS = [*range(58), 999, -3], [np.array([n, 59 - n]) for n in range(60)]


def test_an_empty_table_reads_the_default_row(tmp_path):
    history = Predicting(tmp_path / "live")
    history.publish(base=True)
    written(history, tmp_path / "models", 1)
    found = predicted(tmp_path / "models", features_of(USERS, LISTS))
    np.testing.assert_array_equal(found["score"], 0)
    assert found["word"][0] == b"a!"


def test_rows_of_16_bits_and_of_a_vocabulary_are_the_followers(tmp_path):
    history = Predicting(tmp_path / "live", vocabulary=60, dtype="bfloat16")
    history.push()
    history.publish()
    written(history, tmp_path / "models", 1)
    features = features_of(USERS, LISTS)
    with shoal.follow(history.root.location) as follower:
        followed = follower.predict(features)["score"]
        rows = follower.lookup("b", np.arange(60))
    assert np.count_nonzero(rows.any(1)) == 60  # most have their initial values
    found = predicted(tmp_path / "models", features)["score"]
    np.testing.assert_allclose(found, followed, rtol=1e-6, atol=1e-6)


def test_too_large_tables_and_models_without_a_saved_model_are_named(tmp_path):
    history = Predicting(tmp_path / "live")
    history.push(40)
    history.publish()
    words = r"more than 0\.001 MB \(a 0\.0 MB, b 0\.0 MB\): give more, keep the rows in Redis"
    with pytest.raises(shoal.UserError, match=words):
        written(history, tmp_path / "models", 1, max_table_mb=0.001)
    assert whole(tmp_path / "models") == []
    other = History(tmp_path / "other")
    other.push()
    other.publish()
    with pytest.raises(shoal.UserError, match="it has no SavedModel of TensorFlow: it was written"):
        written(other, tmp_path / "models", 1)


def test_the_command_is_killed_and_goes_on(tmp_path):
    history = Predicting(tmp_path / "live")
    history.push()
    history.publish()
    models = tmp_path / "models"
    command = [sys.executable, "-m", "shoal", "follow", str(tmp_path / "live"), "--to", str(models)]
    process = subprocess.Popen([*command, "--every", "0.01"], stderr=subprocess.DEVNULL)
    with process:
        until("a version", lambda: models.exists() and whole(models) == [1])
        history.push()
        history.publish()
        until("a part of the next one", lambda: [*models.glob(".shoal-*/model/variables")])
        process.kill()
    assert predicted(models, features_of(USERS, LISTS))["score"].shape == (60,)
    history.push()
    history.publish()
    command += ["--until", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "version 3 is in" in done.stderr) == (0, True), done.stderr
    assert whole(models) in ([1, 3], [2, 3])  # by when it was killed
    assert len([*models.iterdir()]) == 2
    found = predicted(models, features_of(USERS, LISTS))["score"]
    np.testing.assert_allclose(found, scores(history, USERS, LISTS), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--to", "redis://h:1", "--every", "3"], "--every and --export-max-table-mb are of"),
        (["--to", "models", "--tables", "a"], "--tables: a SavedModel needs all tables"),
    ],
)
def test_flags_that_do_not_go_together(flags, words):
    done = CliRunner().invoke(main, ["follow", "live", *flags])
    assert (done.exit_code, words in done.output) == (2, True)
