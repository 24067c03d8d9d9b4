"""The MovieLens models: what feed makes of records, and that they compute on it."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from shoal.layers import lookup_with
from shoal.model_zoo.movielens import deepfm, wide_and_deep

MODELS = pytest.mark.parametrize("module", [deepfm, wide_and_deep], ids=["deepfm", "wide"])


def records():
    """Three records, of 2, 0 and 6 genres."""
    scalars = {name: np.array([1, 2, 3]) for name in wide_and_deep.DIMS}
    genres = tf.RaggedTensor.from_row_lengths(np.arange(8), [2, 0, 6])
    label = np.array([1, 0, 1], np.float32)
    return tf.data.Dataset.from_tensor_slices(scalars | {"genres": genres, "label": label})


def lookup(padding):
    """Rows that are a function of the id; `padding` fills those of id -1."""

    def rows(layer, ids):
        ids = tf.cast(ids, tf.int64)[..., None]
        row = tf.sin(tf.cast(ids % 1009, tf.float32) + tf.range(layer.output_dim, dtype=tf.float32))
        return tf.where(ids < 0, padding, row)

    return rows


@MODELS
def test_a_batch_is_predicted_and_its_loss_is_one_number(module):
    model = module.custom_model()
    (batch,) = module.feed(records(), "training", None).batch(3)
    features, labels = batch
    with lookup_with(lookup(0.0)):
        predictions = model(features)
    assert predictions.shape == (3,)
    assert np.all((predictions > 0) & (predictions < 1))
    assert module.loss(labels, predictions).shape == ()
    for metric in module.eval_metrics_fn().values():
        metric.update_state(labels, predictions)
        assert np.isfinite(metric.result())
    assert isinstance(module.optimizer(), keras.optimizers.Optimizer)


@MODELS
def test_places_without_a_genre_do_not_count(module):
    model = module.custom_model()
    (features,) = module.feed(records(), "prediction", None).batch(3)
    with lookup_with(lookup(0.0)):
        expected = model(features)
    with lookup_with(lookup(1e3)):
        np.testing.assert_allclose(model(features), expected, rtol=1e-5)


def test_fields_never_share_an_id():
    ids = np.stack([x["ids"] for x in deepfm.feed(records(), "prediction", None)])
    used = ids[ids >= 0].reshape(-1)
    assert {int(i) >> 40 for i in used} == set(range(len(deepfm.FIELDS) + 1))
    crosses = np.stack([x["crosses"] for x in wide_and_deep.feed(records(), "prediction", None)])
    assert len(np.unique(crosses)) == crosses.size


@MODELS
def test_the_tutorials_stay_short(module):
    with open(module.__file__) as file:
        text = file.read()
    assert len(text.splitlines()) < 120
    assert re.search(r'^"""', text)
