"""`shoal check` names what is wrong with a module, and says what a good one is made of."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.config.job import JobConfig
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.worker.inspect import check
from shoal.worker.servers import local

pytestmark = pytest.mark.slow

GOOD = """
import keras
import tensorflow as tf
from shoal.layers import Embedding


def feed(dataset, mode, metadata):
    def prepare(row):
        features = {"user": row["user"], "item": row["item"]}
        return features if mode == "prediction" else (features, tf.cast(row["clicked"], tf.float32))

    return dataset.map(prepare)


def custom_model():
    ids = {name: keras.Input([], dtype="int64", name=name) for name in ("user", "item")}
    user = Embedding(8, name="users")(ids["user"])
    item = keras.layers.Embedding(70_000, 8, name="items")(ids["item"])
    hidden = keras.layers.Dense(4, activation="relu")(keras.ops.concatenate([user, item], 1))
    return keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(hidden)[:, 0])


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels[:, None], predictions[:, None])


def optimizer():
    return make_optimizer()


def make_optimizer():
    return keras.optimizers.Adam(0.01)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
"""

BROKEN = {
    "unsupported optimizer": (
        [("return keras.optimizers.Adam(0.01)", "return keras.optimizers.Nadam(0.01)")],
        [r"optimizer\(\) of clicks.py: the optimizer Nadam is not supported: the .*SGD, .*is Adam"],
    ),
    "regularizer of an open table": (
        [('Embedding(8, name="users")', 'Embedding(8, embeddings_regularizer="l2", name="users")')],
        [r"shoal.layers.Embedding 'users' takes no embeddings_regularizer: use activity_reg"],
    ),
    "number of ids of an open table": (
        [('Embedding(8, name="users")', 'Embedding(1000, 8, name="users")')],
        [r"shoal.layers.Embedding\(1000, 8\): the layer takes any id.*: Embedding\(8\)"],
    ),
    "argument spelled wrongly": (
        [('Embedding(8, name="users")', 'Embedding(8, mask_zeros=True, name="users")')],
        [r"'users' takes no mask_zeros: it takes output_dim, .*\(did you mean mask_zero\?\)"],
    ),
    "labels and predictions of two ranks in a loss of one's own": (
        [
            ("(labels[:, None], predictions[:, None])", "(labels, predictions[:, 0])"),
            ('activation="sigmoid")(hidden)[:, 0])', 'activation="sigmoid")(hidden))'),
        ],
        [
            r"clicks.py: loss raised ValueError: .*It gets labels and predictions of one shape, "
            r"\[batch, 1\], as from Keras's compile\(\): remove tf.squeeze, "
        ],
    ),
    "each label against each prediction, silently": (
        [
            (
                "keras.losses.binary_crossentropy(labels[:, None], predictions[:, None])",
                "tf.reduce_mean(tf.square(labels - predictions[:, 0]))",
            ),
            ('activation="sigmoid")(hidden)[:, 0])', 'activation="sigmoid")(hidden))'),
        ],
        [
            r"clicks.py: loss pairs each label with each prediction. It gets labels and "
            r"predictions of one shape, \[batch, 1\], as from Keras's compile\(\): remove"
        ],
    ),
    "each label against each prediction, in a metric": (
        [
            (
                "keras.losses.binary_crossentropy(labels[:, None], predictions[:, None])",
                "keras.losses.binary_crossentropy(labels, predictions)",
            ),
            ('activation="sigmoid")(hidden)[:, 0])', 'activation="sigmoid")(hidden))'),
            ("keras.metrics.AUC()", "lambda labels, p: tf.where(labels > 0.5, p, 1 - p)"),
        ],
        [r"eval_metrics_fn\(\) of clicks.py: metric 'auc' pairs each label with each prediction"],
    ),
    "option of the optimizer": (
        [("Adam(0.01)", "Adam(0.01, use_ema=True)")],
        [r"optimizer\(\) of clicks.py: optimizer Adam: option use_ema is not supported"],
    ),
    "initializer": (
        [('Embedding(8, name="users")', 'Embedding(8, "orthogonal", name="users")')],
        ["embedding 'users': initializer Orthogonal"],
    ),
    "regularizer and optimizer at once": (
        [
            ('8, name="items")', '8, embeddings_regularizer="l2", name="items")'),
            ("keras.optimizers.Adam(0.01)", "keras.optimizers.Lion()"),
        ],
        ["optimizer Lion is not supported", r"embedding 'items' .*embeddings_regularizer \(L2\)"],
    ),
    "constraint": (
        [('Dense(4, activation="relu"', 'Dense(4, kernel_constraint="non_neg", name="narrow"')],
        ["variable narrow/kernel of the model in clicks.py has the constraint NonNeg"],
    ),
    "column that is not there": (
        [('row["item"]', 'row["itme"]')],
        [r"feed\(\) of clicks.py: --training-data: there is no column 'itme'"],
    ),
    "id out of range": (
        [("70_000", "65_000")],
        ["embedding 'items' was given the id 69900: its ids go from 0 to 64999"],
    ),
    "two tables of one name": (
        [('keras.layers.Embedding(70_000, 8, name="items")', 'Embedding(8, table="users")')],
        ["two embedding layers are named 'users': a name is a table"],
    ),
    "a model that is none": (
        [("    return keras.Model(ids, ", "    return (ids, ")],
        [r"custom_model\(\) of clicks.py returned tuple, not a keras.Model"],
    ),
    "loss that raises": (
        [("labels[:, None], pred", "labels[:, None] + 'x', pred")],
        ["the training step of clicks.py raised"],
    ),
    "loss that is not finite": (
        [("    return keras.losses.binary", "    return float('nan') * keras.losses.binary")],
        ["the loss is nan"],
    ),
    "metric that is none": (
        [('{"auc": keras.metrics.AUC()}', '{"auc": 0.5}')],
        [r"eval_metrics_fn\(\) of clicks.py: metric 'auc' is a float"],
    ),
    "text as ids": (
        [('"item": row["item"]}', '"item": tf.strings.as_string(row["item"])}')],
        [r"feed\(\) of clicks.py gives text as feature 'item'"],
    ),
    "a feature of another name": (
        [('"item": row["item"]}', '"itm": row["item"]}')],
        [r"feed\(\) of clicks.py gives no feature 'item' \(did you mean itm\?\), which"],
    ),
    "features without names": (
        [('{"user": row["user"], "item": row["item"]}', '(row["user"], row["item"])')],
        [
            r"feed\(\) of clicks.py gives features without names, 2 tensors, and the model has 2 "
            r"inputs: give a dict, {'item': ..., 'user': ...}"
        ],
    ),
    "a list of features": (
        [('{"user": row["user"], "item": row["item"]}', '[row["user"], row["item"]]')],
        [r"gives features without names, 1 tensor, and .*\. Of a list tf.data makes one tensor"],
    ),
    "a list for one value": (
        [('"item": row["item"]}', '"item": tf.stack([row["item"]] * 2)}')],
        [
            r"gives lists as feature 'item', and the model's input takes one value in place of "
            r"each, the shape \(None,\): make one value .* keras.Input\(\(None,\), name='item'\)"
        ],
    ),
    "a processor that processes nothing": (
        [("def loss(", "class PredictionOutputsProcessor:\n    proces = None\n\n\ndef loss(")],
        ["PredictionOutputsProcessor of clicks.py has no method process"],
    ),
    "a feed that batches": (
        [("dataset.map(prepare)", "dataset.map(prepare).batch(32).prefetch(1)")],
        [r"feed\(\) of clicks.py makes batches in mode 'training': remove that"],
    ),
}


@pytest.fixture
def inspect(write_module, parquet):
    data = parquet(
        user=np.arange(100) * 10**15, item=np.arange(100) + 69_900, clicked=np.arange(100) % 2
    )

    def run(text, **fields):
        folder = write_module(text, name="clicks")
        given = {"training_data": data} | fields
        return check.inspect(
            JobConfig(
                command="check",
                model_def="clicks.custom_model",
                model_zoo=folder,
                job_dir=folder,
                batch_size=100,
                **given,
            )
        )

    return run


@pytest.mark.parametrize(("edits", "faults"), BROKEN.values(), ids=BROKEN)
def test_each_fault_is_named(inspect, edits, faults):
    text = GOOD
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    found = inspect(text).faults
    assert len(found) == len(faults)
    for message, words in zip(found, faults, strict=True):
        assert re.search(words, message), message


def test_the_report_says_what_lives_where(inspect):
    report = inspect(GOOD)
    assert report.faults == []
    text = "\n".join(report.lines)
    assert "users: Embedding of 8 values, any int64 id, uniform at first" in text
    assert "items: Embedding of 8 values, ids 0 to 69999, uniform at first" in text
    # 8 values, 16 of Adam's slots, and what an index takes.
    assert "with the slots of adam (momentum, velocity), " in text
    assert "73 trained values in 4 variables" in text
    assert "One batch of 100 records: loss 0.69" in text
    assert "200 distinct ids" in text
    assert "metrics of the batch: loss 0.69" in text


@pytest.mark.parametrize(
    ("kind", "dim", "value_dtype"),
    [("SGD", 8, ""), ("Adam", 4, ""), ("SGD", 15, "bfloat16"), ("Adagrad", 15, "float16")],
)
def test_what_a_row_takes_is_that_of_a_large_table(kind, dim, value_dtype):
    """A store of millions of rows, as a server has it, takes so much for each."""
    table = pb.TableSpec(
        dim=dim,
        value_dtype=value_dtype,
        optimizer=OptimizerSpec.from_keras(kind, {}).to_json(),
        initializer=InitializerSpec("zeros").to_json(),
    )
    store = local.store_of(table)
    rows = 3_000_000
    store.insert(np.arange(rows))
    assert check.row_bytes(table) == pytest.approx(store.memory_bytes() / rows, rel=0.15)


def test_the_export_is_tried_and_what_it_lacks_is_said(inspect):
    text = "\n".join(inspect(GOOD).lines)
    assert "Export: keras, savedmodel\n" in text
    assert "tried: model.keras and saved_model predict this batch as the model does" in text
    bags = GOOD.replace('Embedding(8, name="users")(ids["user"])', BAG)
    text = "\n".join(inspect(bags).lines)
    assert "no model.keras: embedding 'users' combines bags of ids (combiner='sum')" in text
    assert "tried: saved_model predicts this batch as the model does" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_int8_export_is_tried_with_the_rows_that_it_stands_for(inspect, dtype):
    """Compared with the exact rows, it would not predict the same."""
    halves = GOOD.replace('name="users")', f'dtype="{dtype}", name="users")')
    report = inspect(halves, export_dtype="int8")
    assert report.faults == []
    text = "\n".join(report.lines)
    assert "  rows are int8 values with a float32 scale a row\n" in text
    assert "tried: model.keras and saved_model predict this batch as the model does" in text
    assert ("users: Embedding of 8 bfloat16 values" in text) == (dtype == "bfloat16")


def test_an_export_is_tried_of_operations_that_a_layer_of_keras_shares_its_name_with(inspect):
    """The class Add of `+` is not the layer Add, which a model may have as well."""
    added = "keras.layers.Add()([hidden, hidden]) + hidden"
    text = "\n".join(inspect(GOOD.replace('"sigmoid")(hidden)', f'"sigmoid")({added})')).lines)
    assert "tried: model.keras and saved_model predict this batch as the model does" in text


BAG = 'Embedding(8, combiner="sum", name="users")(ids["user"][:, None])'

FORGETFUL = """
class Forgetful(keras.layers.Layer):
    scale = 1.0

    def call(self, x):
        return x * self.scale


def custom_model():
    forgetful = Forgetful()
    forgetful.scale = 3.0
"""


def test_an_export_that_would_predict_otherwise_is_a_fault(inspect):
    text = GOOD.replace("def custom_model():", FORGETFUL)
    text = text.replace('"sigmoid")(hidden)[:, 0])', '"sigmoid")(forgetful(hidden))[:, 0])')
    (fault,) = inspect(text).faults
    assert "model.keras of the model in clicks.py does not predict the same as the model" in fault


def test_data_without_a_header_are_read_as_the_flags_say(inspect, tmp_path):
    path = tmp_path / "u.data"
    path.write_text("".join(f"{i + 7}\t{69_900 + i}\t{i % 2}\n" for i in range(100)))
    given = {"training_data": str(path), "data_format": "csv", "csv_separator": "tab"}
    report = inspect(GOOD, csv_columns="user,item,clicked", **given)
    assert report.faults == []
    assert "One batch of 100 records" in "\n".join(report.lines)
    (fault,) = inspect(GOOD, **given).faults
    assert "there is no column 'user'" in fault
    assert "its first line is taken for the names of the columns" in fault
    assert fault.endswith("if it is one, give --csv-columns with the names")


def test_validation_data_are_tried_too(inspect, parquet):
    later = {"user": np.arange(40), "item": np.arange(40) + 9, "clicked": np.arange(40) % 2}
    report = inspect(GOOD, validation_data=parquet("later.parquet", **later))
    assert report.faults == []
    assert "\n  of 40 records of the validation data: loss 0.69" in "\n".join(report.lines)
    beyond = parquet("beyond.parquet", **later | {"item": np.arange(40) + 70_000})
    (fault,) = inspect(GOOD, validation_data=beyond).faults
    assert "embedding 'items' was given the id 70000: its ids go from 0 to 69999" in fault


def test_without_data_a_functional_model_is_looked_at(inspect):
    report = inspect(GOOD, training_data="")
    assert report.faults == []
    assert "users: Embedding of 8 values" in "\n".join(report.lines)


@pytest.mark.slow
def test_the_command(write_module, parquet):
    text = GOOD.replace('"item": row["item"]}', '"item": tf.cast(row["item"], tf.float64)}')
    folder = write_module(text, name="clicks")
    data = parquet(user=np.arange(4), item=np.arange(4), clicked=np.arange(4) % 2)

    def run(*more):
        command = [sys.executable, "-m", "shoal", "check", "--model-zoo", folder, *more]
        environment = os.environ | {"KERAS_BACKEND": "torch"}  # for others; workers need TensorFlow
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    good = run("--model-def", "clicks.custom_model", "--training-data", data)
    assert good.returncode == 0, good.stderr
    assert "\nWarning: feed() of clicks.py gives float64 as feature 'item', and the" in good.stdout
    assert good.stdout.endswith("Nothing unsupported was found.\n")
    text = text.replace("return make_optimizer()", "return keras.optimizers.Nadam()")
    Path(folder, "clicks.py").write_text(text)
    bad = run("--model-def", "clicks.custom_model")
    assert bad.returncode == 2
    assert "line 28: optimizer(): the optimizer Nadam is not supported" in bad.stderr
    assert "Traceback" not in bad.stderr
