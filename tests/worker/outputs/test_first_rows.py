"""The rows that a model brings, as they are written for the servers."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.checkpoints.saved import Export
from shoal.errors import UserError
from shoal.worker.outputs.first_rows import write_first_rows
from tests.worker.networks import CONFIG

MATRIX = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
SPEC = {"ids": tf.TensorSpec([None], tf.int64)}


@pytest.fixture
def bringing(served):
    """A model one of whose two tables begins with MATRIX."""

    def build():
        ids = keras.Input([], dtype="int64", name="ids")
        given = keras.layers.Embedding(10, 4, weights=[MATRIX], name="given")(ids)
        drawn = keras.layers.Embedding(10, 4, name="drawn")(ids)
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(given + drawn))

    return served(build=build, spec=SPEC, config=dataclasses.replace(CONFIG, embedding_threshold=0))


def test_they_are_an_export_of_the_tables_that_are_given(bringing, tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_dir=str(tmp_path / "checkpoints-0"))
    saved = Export(config.first_rows)
    assert [each["name"] for each in saved.manifest["tables"]] == ["given"]
    ((ids, rows),) = saved.rows("given", 4)
    np.testing.assert_array_equal(ids, np.arange(10))
    np.testing.assert_array_equal(rows, MATRIX)
    # Those of another worker, which this one lets stand.
    before = {path: path.stat().st_mtime_ns for path in Path(config.first_rows).iterdir()}
    write_first_rows(bringing, config)
    after = {path: path.stat().st_mtime_ns for path in Path(config.first_rows).iterdir()}
    assert after == before


def test_pods_need_a_folder_that_they_share(bringing):
    words = "model.py: table 'given' begins with given rows, .*--checkpoint-dir, or a --volume"
    with pytest.raises(UserError, match=words):
        write_first_rows(bringing, dataclasses.replace(CONFIG, checkpoint_dir=""))
