"""Exports of rows of 8 and 16 bits: their files, their models, and how far int8 is off."""

import dataclasses

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import shoal.layers
from shoal.checkpoints.formats.quantized import dequantize, quantize
from shoal.checkpoints.saved import Export
from shoal.errors import UserError
from tests.worker.exported import export_to
from tests.worker.networks import CONFIG, IDS, as_batch, batches, network
from tests.worker.outputs.builds import BUILDS, trained

UNSEEN = np.array([[999, 3, -5], [-7, -7, 12345678901]], np.int64)
FEATURES = {
    "ids": tf.constant(np.concatenate([IDS.reshape(2, 3), UNSEEN])),
    "x": tf.constant([[0.5, -1.0], [2.0, 0.0], [0.5, -1.0], [2.0, 0.0]]),
}

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
shapes = arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)


@given(arrays.arrays(np.float32, shapes, elements=finite))
@example(np.array([[np.finfo(np.float32).max]], np.float32))
def test_int8_is_off_by_half_a_scale_at_most(rows):
    values, scales = quantize(rows)
    assert (values.dtype, scales.dtype) == (np.int8, np.float32)
    assert values.min(initial=0) >= -127
    # In float64, which holds both products of 8 and 24 bits exactly.
    wide = rows.astype(np.float64)
    error = np.abs(wide - values.astype(np.float64) * scales.astype(np.float64)[:, None])
    assert (error <= scales.astype(np.float64)[:, None] / 2).all()
    # The scale is no larger than the bound's use needs.
    largest = np.abs(wide).max(axis=1)
    least = np.finfo(np.float32).smallest_normal
    assert (scales <= np.maximum(largest / 127 * (1 + 2.0**-23), least)).all()
    assert (scales[largest == 0] == 0).all()
    # As float32 the product is rounded once more, by a part in 2^24 of it.
    np.testing.assert_allclose(
        dequantize(values, scales), values * scales.astype(np.float64)[:, None], rtol=2.0**-24
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_no_int8(wrong):
    rows = np.ones((3, 2), np.float32)
    rows[1, 1] = wrong
    with pytest.raises(ValueError, match="row 1 is not finite"):
        quantize(rows)


def loaded(folder):
    """What the models of an export predict for FEATURES, by name."""
    saved = tf.saved_model.load(str(folder / "saved_model"))  # holds the variables
    found = {"saved_model": saved.serve(FEATURES)}
    if (folder / "model.keras").exists():
        found["keras"] = keras.models.load_model(folder / "model.keras")(FEATURES)
    return {name: np.asarray(each, np.float32) for name, each in found.items()}


def plain_in_bfloat16():
    """A plain layer of Keras that computes in bfloat16, and one of shoal's with such rows."""
    ids = keras.Input((3,), dtype="int64", name="ids")
    x = keras.Input((2,), name="x")
    near = keras.layers.Embedding(12, 4, dtype="mixed_bfloat16", name="near")(ids % 12)
    far = shoal.layers.Embedding(4, dtype="bfloat16", name="far")(ids)
    parts = [keras.layers.Flatten()(each) for each in (near, far)]
    return keras.Model(
        {"ids": ids, "x": x},
        keras.layers.Dense(1, activation="sigmoid")(keras.layers.Concatenate()([*parts, x])),
    )


def rows_of(export, table):
    (found,) = (each for each in export.manifest["tables"] if each["name"] == table)
    return {
        key: row
        for ids, rows in export.rows(table, found["dim"])
        for key, row in zip(ids.tolist(), rows, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize("build", ["functional", "nested", "subclassed", "bfloat16"])
def test_models_of_int8_rows_predict_as_a_job_with_the_rows_that_they_stand_for(
    served, cluster, server_group, exports, tmp_path, build
):
    """The process without shoal that loads one of them is test_model_shapes.py's last test."""
    config = dataclasses.replace(CONFIG, embedding_threshold=0)
    build_ = BUILDS.get(build, plain_in_bfloat16)

    def made(**options):
        return served(build=build_, optimizer=lambda: keras.optimizers.Adagrad(0.5), **options)

    model = made(config=config)
    for batch in batches():
        model.train_batch(as_batch(*batch), 1)
    export_to(tmp_path / "exact", model)
    export_to(tmp_path / "int8", model, export_dtype="int8")
    exact, small = (Export(str(tmp_path / name)) for name in ("exact", "int8"))
    small.verify()
    for table in small.manifest["tables"]:
        assert table["dtype"] == "int8"
        file = pq.read_table(tmp_path / "int8" / table["file"])
        assert file.schema.field("vector").type == pa.list_(pa.int8(), table["dim"])
        assert file.schema.field("scale").type == pa.float32()
        scales = dict(zip(file["id"].to_pylist(), file["scale"].to_pylist(), strict=True))
        ours, theirs = (rows_of(each, table["name"]) for each in (small, exact))
        assert ours.keys() == theirs.keys() == scales.keys()
        for key, row in theirs.items():
            off = np.abs(row.astype(np.float64) - ours[key])
            assert (off <= scales[key] / 2 * (1 + 2.0**-15)).all()
        if table["dim"] > 1:
            assert any((theirs[key] != row).any() for key, row in ours.items())
    # A job that begins with the int8 export has its rows, so its predictions are the models'.
    rounding = 2.0**-7 if build == "bfloat16" else 1e-6
    again = made(config=config, group=server_group(cluster(1, saved=str(tmp_path / "int8"))))
    again.pull_dense()
    expected = np.asarray(again.predict_batch(FEATURES), np.float32)
    found = loaded(tmp_path / "int8")
    assert ("keras" in found) == (build != "subclassed")
    for name, predicted in found.items():
        np.testing.assert_allclose(predicted, expected, rtol=rounding, err_msg=name)
    if build != "bfloat16":
        exports.add(f"int8, {build}", again, FEATURES, export_dtype="int8")


@pytest.mark.slow
def test_vectors_of_int8_tables_outside_the_model_are_given_by_their_files(
    served, cluster, server_group, exports, tmp_path
):
    """The process that gives them is test_model_shapes.py's last test."""
    model = trained(served, BUILDS["functional"])
    export_to(tmp_path / "int8", model, export_dtype="int8")
    again = served(group=server_group(cluster(1, saved=str(tmp_path / "int8"))))
    options = {"export_dtype": "int8", "export_max_table_mb": 0}
    folder, _ = exports.add("large, int8", again, FEATURES, **options)
    assert not any(table["in_models"] for table in Export(str(folder)).manifest["tables"])


@pytest.mark.slow
def test_models_hold_bfloat16_rows_as_they_are(served, tmp_path):
    def build(dtype):
        def embedding(dim, name):
            return shoal.layers.Embedding(dim, "uniform", name=name, dtype=dtype)

        return lambda: network(embedding)

    sizes = {}
    for dtype in ("bfloat16", "float32"):
        model = trained(served, build(dtype))
        folder = tmp_path / dtype
        export_to(folder, model)
        expected = np.asarray(model.predict_batch(FEATURES), np.float32)
        for name, predicted in loaded(folder).items():
            np.testing.assert_allclose(predicted, expected, rtol=1e-6, err_msg=name)
        saved = tf.saved_model.load(str(folder / "saved_model"))
        rows = saved.rows["deep"]
        assert rows.dtype.name == dtype
        layer = keras.models.load_model(folder / "model.keras").get_layer("deep").layers[1]
        assert layer.embeddings.dtype == dtype
        # The files of tables stay float32, for every reader.
        file = pq.read_table(folder / "tables" / "deep.parquet")
        assert file.schema.field("vector").type == pa.list_(pa.float32(), 4)
        sizes[dtype] = rows.numpy().nbytes
        servers = {
            key: row
            for ids, values in model.group.read_table(list(model.tables).index("deep"))
            for key, row in zip(ids.tolist(), values.tolist(), strict=True)
        }
        assert dict(zip(file["id"].to_pylist(), file["vector"].to_pylist(), strict=True)) == servers
    assert sizes["bfloat16"] * 2 == sizes["float32"]


def test_a_row_that_is_not_finite_is_named(served, tmp_path):
    model = trained(served, BUILDS["functional"])
    position = list(model.tables).index("deep")
    model.group.assign_rows(position, IDS[2:3], np.full((1, 4), np.inf, np.float32))
    words = rf"--export-dtype int8: the row of id {IDS[2]} in table 'deep' .* not finite"
    with pytest.raises(UserError, match=words):
        export_to(tmp_path / "int8", model, export_dtype="int8")
    export_to(tmp_path / "auto", model)
