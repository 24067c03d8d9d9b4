"""A job whose tables are those of keras_rs's DistributedEmbedding, against Keras alone."""

import csv
import importlib.util
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.jobs.running import MODELS, ZOO, run

pytestmark = pytest.mark.job

RECORDS, EPOCHS = 96, 8

LOADED = """
import sys
sys.modules["shoal"] = None  # importing it raises
import keras, keras_rs, numpy as np, tensorflow as tf
folder, data, found = sys.argv[1:]
model = keras.models.load_model(folder + "/model.keras")
tables = model.get_layer("tables").get_embedding_tables()
given = np.load(data)
features = {name: tf.constant(given[name]) for name in ("user", "item")}
features["tags"] = tf.RaggedTensor.from_row_splits(given["tags"], given["splits"])
saved = tf.saved_model.load(folder + "/saved_model")
np.savez(
    found,
    keras=model(features),
    saved=saved.serve(features),
    **{name: np.array(each) for name, each in tables.items()},
)
"""


def records():
    """Columns in which every id of every table occurs."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 4, RECORDS)
    return {
        "user": np.arange(RECORDS) % 24,
        "item": rng.permutation(np.arange(RECORDS) % 9),
        "tags": np.split(np.arange(lengths.sum()) % 7, np.cumsum(lengths)[:-1]),
        "label": rng.integers(0, 2, RECORDS).astype(np.float32),
    }


@pytest.fixture(scope="module")
def module():
    """The module of the job, imported here."""
    spec = importlib.util.spec_from_file_location("distributed", ZOO / "distributed.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def trained_by_keras(module, columns, optimizers):
    """Losses, tables and predictions of the same model and steps in Keras.

    optimizers: what makes the optimizer of each table.
    """
    model = module.custom_model()
    features = {name: tf.constant(columns[name]) for name in ("user", "item")}
    features["tags"] = tf.ragged.constant([each.tolist() for each in columns["tags"]], tf.int64)
    layers = {each.name: each for each in model._flatten_layers()}
    rules = [(make(), [layers[name].embeddings]) for name, make in optimizers.items()]
    rules.append((module.optimizer(), layers["out"].trainable_variables))
    losses = []
    for _ in range(EPOCHS):
        with tf.GradientTape(persistent=True) as tape:
            value = tf.reduce_mean(module.loss(columns["label"], model(features)))
        losses.append(float(value))
        for rule, variables in rules:
            gradients = tape.gradient(value, [each.value for each in variables])
            rule.apply([tf.convert_to_tensor(each) for each in gradients], variables)
    tables = {name: layers[name].embeddings.numpy() for name in optimizers}
    return losses, tables, model(features).numpy()


def test_each_table_is_trained_by_its_optimizer_and_exported_for_keras_rs(module, tmp_path):
    columns = records()
    tags = pa.array([each.tolist() for each in columns["tags"]], pa.list_(pa.int64()))
    pq.write_table(pa.table(columns | {"tags": tags}), tmp_path / "data.parquet")
    run(
        "train",
        tmp_path,
        "distributed",
        model_def="distributed.custom_model",
        training_data=tmp_path / "data.parquet",
        output=tmp_path / "out",
        **MODELS,
        batch_size=RECORDS,  # all ids are in every batch, and no order of steps matters
        epochs=EPOCHS,
        servers="2",
        pipeline_depth=0,
        step_losses=True,
    ).succeeded()
    given = {name: columns[name] for name in ("user", "item")}
    splits = np.cumsum([0, *map(len, columns["tags"])])
    np.savez(tmp_path / "given.npz", tags=np.concatenate(columns["tags"]), splits=splits, **given)
    arguments = [str(tmp_path / each) for each in ("out", "given.npz", "found.npz")]
    subprocess.run([sys.executable, "-c", LOADED, *arguments], check=True, cwd=tmp_path)
    with np.load(tmp_path / "found.npz") as loaded:
        found = dict(loaded)

    losses, tables, predictions = trained_by_keras(module, columns, module.OPTIMIZERS)
    with (tmp_path / "distributed" / "losses.csv").open(newline="") as file:
        of_job = [float(row["loss"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(of_job, losses, rtol=1e-4)
    assert losses[-1] < losses[0] - 0.1
    for name, expected in tables.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-3, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(found["keras"], predictions, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["saved"], found["keras"], rtol=1e-5, atol=1e-6)

    # What one optimizer for all would have made of them, as keras-rs does here by itself.
    _, others, _ = trained_by_keras(module, columns, dict.fromkeys(tables, module.optimizer))
    for name, other in others.items():
        assert np.abs(found[name] - other).max() > 0.05, name
