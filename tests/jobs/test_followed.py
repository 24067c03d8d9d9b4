"""A job that publishes, followed: what followers answer is what its export predicts."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import shoal
from shoal.deltas.to_versions import Versions, follow_into
from shoal.result import JobResult
from shoal.worker.engines.tensorflow.outputs.versions import save
from tests.deltas.versions import newest
from tests.jobs.running import run, until

pytestmark = pytest.mark.job

MODULE = """
import keras
from shoal.layers import Embedding

def custom_model():
    user, item = (keras.Input([], dtype="int64", name=name) for name in ("user", "item"))
    vectors = [Embedding(4, name="users")(user), Embedding(4, name="items")(item)]
    hidden = keras.layers.Concatenate()(vectors)
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="relu")(hidden))
    return keras.Model([user, item], keras.layers.Dense(1, activation="sigmoid")(hidden))

def feed_batch(columns, mode, metadata):
    features = {"user": columns["user"], "item": columns["item"]}
    return features if mode == "prediction" else (features, columns["label"])

loss = "binary_crossentropy"
optimizer = lambda: keras.optimizers.Adam(0.05)
"""

FEATURES = {"user": np.arange(40), "item": np.arange(40)[::-1].copy()}


@pytest.fixture
def fields(tmp_path):
    """The fields of a job that publishes; some of the ids of FEATURES are never trained."""
    (tmp_path / "rated.py").write_text(MODULE)
    numbers = np.random.default_rng(1)
    users, items = numbers.integers(0, 30, 4000), numbers.integers(0, 35, 4000)
    columns = {"user": users, "item": items, "label": ((users + items) % 2).astype(np.float32)}
    pq.write_table(pa.table(columns), tmp_path / "rated.parquet")
    return {
        "model_zoo": tmp_path,
        "model_def": "rated.custom_model",
        "training_data": tmp_path / "rated.parquet",
        "batch_size": 64,
        "servers": "2",
        "publish": tmp_path / "live",
        "publish_seconds": 0.2,
        "output": tmp_path / "out",
        "export": "savedmodel",
    }


def result_of(tmp_path, name):
    return JobResult.read(tmp_path / name / "result.json")


def exported(tmp_path, name):
    return result_of(tmp_path, name).predict(FEATURES)


def assert_as_exported(follower, tmp_path, name, output):
    """A follower has the rows and the dense values of an export, and predicts what it does."""
    for table in ("users", "items"):
        wanted = result_of(tmp_path, name).embedding(table, np.arange(40))
        np.testing.assert_array_equal(follower.lookup(table, np.arange(40)), wanted)
    dense = {each["name"]: each["values"] for each in pq.read_table(output).to_pylist()}
    for path, value in follower.predictor._dense.items():
        np.testing.assert_array_equal(np.ravel(value), np.float32(dense[path]), path)
    found = follower.predict(FEATURES)
    np.testing.assert_allclose(found, exported(tmp_path, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_followers_predict_as_the_export_and_change_with_the_next_job(fields, tmp_path, engine):
    run("train", tmp_path, "first", engine=engine, **fields).succeeded()
    with shoal.follow(fields["publish"]) as follower:
        first = follower.number
        until("the last delta", lambda: follower.caught_up)
        before = follower.predict(FEATURES)
        assert_as_exported(follower, tmp_path, "first", tmp_path / "out" / "dense.parquet")

        more = {"continue_from": tmp_path / "first", "output": tmp_path / "more", "epochs": 3}
        run("train", tmp_path, "second", engine=engine, **{**fields, **more}).succeeded()
        until("the second job's last delta", lambda: _rests(follower, fields["publish"]))
        assert follower.number > first
        after = follower.predict(FEATURES)
        assert_as_exported(follower, tmp_path, "second", tmp_path / "more" / "dense.parquet")
        assert np.abs(after - before).max() > 1e-3
    found = of_version(fields["publish"], tmp_path / "models", follower.number)
    np.testing.assert_allclose(found, after, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found, exported(tmp_path, "second"), rtol=1e-6, atol=1e-6)


def of_version(live, folder, number):
    """What the version of a delta predicts, as TensorFlow Serving chooses and calls it."""
    with contextlib.closing(Versions(str(folder))) as versions:
        follow_into(live, versions, partial(save, max_table_mb=512), 1.0, number)
    given = {name: tf.constant(each) for name, each in FEATURES.items()}
    model = tf.saved_model.load(str(newest(folder)))
    return model.signatures["serving_default"](**given)["output"].numpy()


def _rests(follower, live):
    """True once a follower has the newest delta that there is."""
    numbers = [int(each.name.removeprefix("delta-")) for each in live.glob("delta-*")]
    return follower.number == max(numbers)


def test_a_server_answers_as_the_export(fields, tmp_path):
    run("train", tmp_path, "first", **fields).succeeded()
    command = [sys.executable, "-m", "shoal", "serve", str(fields["publish"]), "--name", "rated"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            port = int(re.search(r":(\d+)/v1/models/rated", process.stdout.readline())[1])
            connection = http.client.HTTPConnection("127.0.0.1", port)

            def ask(method, path, body=None):
                connection.request(method, path, json.dumps(body))
                answer = connection.getresponse()
                return answer.status, answer.read()

            until("readiness", lambda: ask("GET", "/readyz")[0] == 200)
            columns = {name: each.tolist() for name, each in FEATURES.items()}
            records = [
                dict(zip(columns, each, strict=True))
                for each in zip(*columns.values(), strict=True)
            ]
            status, body = ask("POST", "/v1/models/rated:predict", {"instances": records})
            connection.close()
        finally:
            process.send_signal(signal.SIGTERM)
    assert (status, process.returncode) == (200, 0), body
    found = json.loads(body)["predictions"]
    np.testing.assert_allclose(found, exported(tmp_path, "first"), rtol=1e-5, atol=1e-6)
