"""`shoal check` warns of mistakes that train without an error."""

import re

import numpy as np
import pytest

from shoal.config.job import JobConfig
from shoal.worker.inspect import check
from tests.worker.inspect.test_check import GOOD

pytestmark = pytest.mark.slow

RECORDS = 200

COLUMNS = {
    "user": np.arange(RECORDS) % 20 * 10**15,
    "item": np.arange(RECORDS) % 50,
    "clicked": np.arange(RECORDS) % 2,
    "session": np.arange(RECORDS) * 7919,
    "at": 1_700_000_000_000 + np.arange(RECORDS) * 86_400_000 // 10,
    "country": np.full(RECORDS, 3),
}

SIGMOID = 'activation="sigmoid")'
LABEL = 'tf.cast(row["clicked"], tf.float32)'
CLASSES = [
    (LABEL, 'row["country"]'),
    (
        'Dense(1, activation="sigmoid")(hidden)[:, 0]',
        'Dense(CLASSES, activation="softmax")(hidden)',
    ),
    ("binary_crossentropy(labels[:, None], predictions[:, None])", "SPARSE(labels, predictions)"),
    ("SPARSE", "sparse_categorical_crossentropy"),
    ("keras.metrics.AUC()", "keras.metrics.SparseCategoricalAccuracy()"),
]

MISTAKES = {
    "labels of other numbers": (
        [(LABEL, f"{LABEL} * 2 - 1")],
        r"feed\(\) of clicks.py gives labels from -1 to 1, and the loss binary_crossentropy takes "
        r"0 to 1: make 0 to 1 of them in feed",
    ),
    "a sigmoid for logits": (
        [("predictions[:, None])", "predictions[:, None], from_logits=True)")],
        r"the output of layer 'dense_\d+' is a sigmoid, and the loss binary_crossentropy has f",
    ),
    "a softmax for logits": (
        [*CLASSES, ("CLASSES", "4"), ("(labels, predictions)\n", "(labels, predictions, True)\n")],
        r"the output of layer 'dense_\d+' is a softmax, and the loss sparse_categorical_crosse",
    ),
    "logits as chances": (
        [(SIGMOID, 'name="score")')],
        r"the model predicts -0.\d+ to 0.\d+, and the loss binary_crossentropy takes chances "
        r'from 0 to 1: give the last layer activation="sigmoid", or the loss from_logits=True',
    ),
    "a float as an id": (
        [('"item": row["item"]}', '"item": tf.cast(row["item"], tf.float64)}')],
        r"gives float64 as feature 'item', and the model's input takes int64",
    ),
    "a time as an id": (
        [('"user": row["user"]', '"user": row["at"]')],
        r"the ids of table 'users' \(feature 'user'\) look like times, 2023-11-14 to 2023-12-04: ",
    ),
    "an id for each record": (
        [('"user": row["user"]', '"user": row["session"]')],
        r"200 of 200 ids of table 'users' \(feature 'user'\) are different: .* users.admit_after=2",
    ),
    "a feature that is always the same": (
        [('"item": row["item"]}', '"item": row["country"]}')],
        r"feature 'item' is 3 in each of the 200 records of .*clicks.parquet that were looked at",
    ),
    "the label as a feature": (
        [('"item": row["item"]}', '"item": row["clicked"]}')],
        r"feature 'item' is the label, or stands for it, in each of the 200 records .*: remove it",
    ),
    "the label in other words as a feature": (
        [('"item": row["item"]}', '"item": 7 - row["clicked"]}')],
        r"feature 'item' is the label, or stands for it, in each of the 200 records .*: remove it",
    ),
}


@pytest.fixture
def inspect(write_module, parquet):
    def run(edits):
        text = GOOD
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        given = {
            "model_zoo": write_module(text, name="clicks"),
            "training_data": parquet("clicks.parquet", **COLUMNS),
            "export": "none",
            "batch_size": 64,
        }
        return check.inspect(JobConfig(command="check", model_def="clicks.custom_model", **given))

    return run


# Keras gives one, which is not shown: it comes out of the middle of its code.
@pytest.mark.filterwarnings("ignore:.*from_logits=True:UserWarning")
@pytest.mark.parametrize(("edits", "words"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_is_a_warning(inspect, edits, words):
    report = inspect(edits)
    assert report.faults == []
    (warning,) = report.warnings
    assert re.search(words, warning), warning


def test_a_sound_model_gives_no_warning(inspect):
    assert inspect([]).warnings == []
    # A feature for metrics is not the model's.
    assert (
        inspect([('"user": row["user"]', '"user": row["user"], "a": row["clicked"]')]).warnings
        == []
    )


def test_a_class_that_the_model_has_not_is_told_by_the_labels(inspect):
    (fault,) = inspect([*CLASSES, ("CLASSES", "3")]).faults
    assert fault == (
        "feed() of clicks.py gives the label 3, and the model's output has the classes 0 to 2: "
        "give its last layer one unit for each class, or map the labels in feed"
    )
