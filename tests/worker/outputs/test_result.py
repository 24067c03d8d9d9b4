"""A result gives the tables, rows and the Keras model that its job has exported."""

import json

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

import shoal.layers
from shoal.checkpoints.saved import Export
from shoal.errors import UserError
from shoal.result import JobResult
from shoal.worker.input.batch import Batch
from tests.worker.exported import export_to
from tests.worker.networks import IDS
from tests.worker.outputs.builds import BUILDS, Subclassed, trained

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


def test_a_model_that_keras_cannot_hold_is_told(served, tmp_path):
    export_to(tmp_path / "export", trained(served, Subclassed))
    with pytest.raises(UserError, match=r"no Keras model, but a SavedModel, whose .*\) gives: "):
        result(tmp_path / "export").load()


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
