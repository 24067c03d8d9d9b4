"""A result gives the tables, rows and the Keras model that its job has exported."""

import dataclasses
import json

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

import shoal.layers
from shoal.checkpoints.saved import Export
from shoal.errors import UserError
from shoal.result import JobResult
from shoal.worker.input.batch import Batch
from tests.worker.exported import export_to
from tests.worker.networks import CONFIG, IDS
from tests.worker.outputs.builds import BUILDS, trained

pytestmark = pytest.mark.slow


def result(folder):
    values = {"state": "succeeded", "job_name": "job", "command": "train", "output": str(folder)}
    return JobResult.from_json(json.dumps(values), folder)


def test_tables_rows_and_the_model_are_those_of_the_export(served, tmp_path):
    export_to(tmp_path / "export", trained(served, BUILDS["functional"]))
    job, export = result(tmp_path / "export"), Export(str(tmp_path / "export"))
    for each in export.manifest["tables"]:
        name, dim = each["name"], each["dim"]
        ids, rows = map(np.concatenate, zip(*export.rows(name, dim), strict=True))
        table = job.table(name)
        assert table.schema.types == [pa.int64(), pa.list_(pa.float32(), dim)]
        assert table["id"].to_pylist() == ids.tolist()
        assert table["vector"].to_pylist() == rows.tolist()
        asked = np.array([[IDS.ravel()[0], 987654321], [IDS.ravel()[-1], IDS.ravel()[0]]])
        found = job.embedding(name, asked)
        assert (found.dtype, found.shape) == (np.float32, (2, 2, dim))
        trained_rows = {int(i): row.tolist() for i, row in zip(ids, rows, strict=True)}
        for place, id_ in np.ndenumerate(asked):
            assert found[place].tolist() == trained_rows.get(int(id_), each["default"])
        assert job.embedding(name, np.array([], np.int64)).shape == (0, dim)
        assert job.embedding(name, int(ids[0])).tolist() == rows[0].tolist()
    with pytest.raises(UserError, match=rf"^there is no table {name}s .*; there are "):
        job.table(f"{name}s")
    with pytest.raises(UserError, match=r"^ids must be integers or strings, not float64$"):
        job.embedding(name, [1.5])
    assert isinstance(job.load(), keras.Model)


@pytest.mark.parametrize(
    ("build", "options"),
    [
        ("functional", {}),
        ("functional", {"export": "keras"}),
        ("functional", {"export_max_table_mb": 0}),
        ("subclassed", {}),
    ],
)
def test_a_result_predicts_with_every_export(served, tmp_path, build, options, monkeypatch):
    monkeypatch.setattr("shoal.exported.BATCH", 1)
    model = trained(served, BUILDS[build])
    export_to(tmp_path / "export", model, **options)
    job = result(tmp_path / "export")
    ids = IDS.reshape(-1, 3)
    features = {"ids": ids, "x": np.arange(2 * len(ids)).reshape(-1, 2) / 10}
    x = features["x"].astype(np.float32)
    expected = model.predict_batch({"ids": tf.constant(ids), "x": tf.constant(x)})
    # A column of lists, float64 and another one, as a DataFrame may have them.
    found = job.predict(features | {"label": np.zeros(len(ids))})
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if options:
        return
    with pytest.raises(UserError, match=r"^features: there is no column x, which the model takes;"):
        job.predict({"ids": ids})
    with pytest.raises(
        UserError, match=r"column x is float32 of shape \(1, 3\), and the model takes"
    ):
        job.predict({"ids": ids[:1], "x": np.zeros((1, 3), np.float32)})
    with pytest.raises(UserError, match=r"^features must be a path, .* not a int$"):
        job.predict(3)
    if build == "subclassed":
        with pytest.raises(
            UserError, match=r"no Keras model, but a SavedModel, with which predict"
        ):
            job.load()


def test_rows_are_found_by_the_strings_that_the_model_took(served, tmp_path):
    def build():
        items = keras.Input((2,), dtype="string", name="item")
        rows = shoal.layers.Embedding(3, name="items")(items)
        return keras.Model({"item": items}, keras.ops.sum(rows, (1, 2))[:, None])

    model = served(build=build, spec={"item": tf.TensorSpec([None, 2], tf.string)})
    features = {"item": tf.constant([["a", "später"], ["c", "a"]])}
    labels = tf.constant([[0.0], [1.0]])
    model.train_batch(Batch(features, labels, 2, 0, 0), 1)
    export_to(tmp_path / "export", model)
    job = result(tmp_path / "export")
    (default,) = (each["default"] for each in Export(job.output).manifest["tables"])
    names = ["a", "später", "c"]
    rows = job.embedding("items", np.array(names, object))
    assert all(row.tolist() != default for row in rows)
    assert job.embedding("items", [["c"], [b"a"], ["new"]]).tolist() == [
        [rows[2].tolist()],
        [rows[0].tolist()],
        [default],
    ]
    # What the model adds up is in these rows.
    sums = dict(zip(names, rows.sum(1), strict=True))
    expected = [[sums["a"] + sums["später"]], [sums["c"] + sums["a"]]]
    np.testing.assert_allclose(model.predict_batch(features), expected, rtol=1e-5)
    with pytest.raises(UserError, match=r"^ids must be integers or strings, not object$"):
        job.embedding("items", ["a", None])
    with pytest.raises(UserError, match="no Keras model"):
        job.load()
    # By the name of the input, and of several columns by it alone.
    for frame in (
        {"item": [["a", "später"], ["c", "a"]]},
        pd.DataFrame({"item": [["a", "später"], ["c", "a"]], "label": [0, 1]}),
    ):
        np.testing.assert_allclose(job.predict(frame), expected, rtol=1e-5)


def test_a_prediction_takes_lists_and_fills_missing_values_as_in_training(served, tmp_path):
    def build():
        tags = keras.Input((None,), dtype="int64", name="tags", ragged=True)
        ages = keras.Input((), dtype="int64", name="age")
        rows = shoal.layers.Embedding(3, combiner="sum", name="rows")(tags)
        age = keras.ops.cast(ages[:, None], "float32")
        return keras.Model({"tags": tags, "age": ages}, keras.ops.sum(rows, 1, keepdims=True) + age)

    spec = {
        "tags": tf.RaggedTensorSpec([None, None], tf.int64, ragged_rank=1),
        "age": tf.TensorSpec([None], tf.int64),
    }
    features = {
        "tags": tf.ragged.constant([[5, 6], [5]], tf.int64),
        "age": tf.constant([7, 0], tf.int64),
    }
    model = served(build=build, spec=spec)
    model.train_batch(Batch(features, tf.zeros([2, 1]), 2, 0, 0), 1)
    export_to(tmp_path / "export", model, fill_missing="age=0,label=1")
    config = dataclasses.replace(CONFIG, fill_missing="age=0,label=1")
    (tmp_path / "export" / "job.json").write_text(config.to_json())
    found = result(tmp_path / "export").predict({"tags": [[5, 6], [5]], "age": [7, None]})
    np.testing.assert_allclose(found, model.predict_batch(features), rtol=1e-5)
