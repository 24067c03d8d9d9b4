"""MovieLens-1M: its records are those of RecBole's protocol, and the model computes on them."""

import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.model_zoo.movielens_1m import deepfm, prepare
from tests.model_zoo.test_models import lookup

INTERACTIONS = [(f"u{user}", f"film {item}", 1 + (user + item) % 5) for user in range(10)
                for item in range(8)]  # fmt: skip


def wheel(path):
    files = {
        "inter": ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
        + [f"{user}\t{item}\t{rating}\t0" for user, item, rating in INTERACTIONS],
        "user": ["user_id:token\tage:float\tgender:token\toccupation:float\tzip_code:token"]
        + [f"u{user}\t{18 + user % 2}\tF\t{user}\t0{user}" for user in range(10)],
        "item": ["item_id:token\tmovie_title:token\trelease_year:float\tgenre:token"]
        + [f'film {item}\tThe "{item}\t{1990 + item}\tDrama War' for item in range(7)]
        + ["film 7\tX\t1990\tAction"],
    }
    with zipfile.ZipFile(path, "w") as archive:
        for kind, lines in files.items():
            archive.writestr(f"{prepare.FOLDER}/ml-1m.{kind}", "\n".join(lines) + "\n")
    return str(path)


def test_ratings_other_than_3_are_split_eight_to_one_to_one(tmp_path, monkeypatch):
    kept = [each for each in INTERACTIONS if each[2] != 3]
    monkeypatch.setattr(prepare, "RECORDS", len(kept))
    written = prepare.prepare(tmp_path / "out", wheel(tmp_path / "a.whl"))
    assert written == {"test.parquet": 7, "validation.parquet": 6, "train.parquet": 51}
    tables = [pq.read_table(tmp_path / "out" / name).to_pylist() for name in written]
    found = sorted((r["user"], r["item"], r["label"]) for table in tables for r in table)
    expected = sorted((int(u[1:]), int(i[5:]), float(rating > 3)) for u, i, rating in kept)
    assert found == expected
    row = next(r for table in tables for r in table if r["item"] == 7 and r["user"] == 1)
    assert row["genres"] == [0]
    assert (row["age"], row["occupation"], row["zip"], row["release_year"]) == (1, 1, 1, 0)


def test_data_that_is_not_whole_is_refused(tmp_path):
    with pytest.raises(UserError, match="has 64 ratings other than 3, not 739,012"):
        prepare.prepare(tmp_path / "out", wheel(tmp_path / "a.whl"))
    assert not (tmp_path / "out").exists()


def test_the_model_predicts_and_penalizes_large_factors():
    columns = {name: tf.constant([1, 2, 3], tf.int64) for name in deepfm.FIELDS}
    columns["genres"] = tf.RaggedTensor.from_row_lengths(np.arange(8), [2, 0, 6])
    columns["label"] = tf.constant([1.0, 0.0, 1.0])
    features, labels = deepfm.feed_batch(columns, "training", None)
    ids = features["ids"].numpy()
    assert ids.shape == (3, len(deepfm.FIELDS) + deepfm.GENRES)
    used = ids[ids >= 0]
    assert {int(i) >> 40 for i in used} == set(range(len(deepfm.FIELDS) + 1))
    assert (ids < 0).sum() == 4 + 6
    assert labels is columns["label"]
    model = deepfm.custom_model()
    with lookup_with(lookup(0.0)):
        predictions = model(features)
    assert predictions.shape == (3,)
    assert np.all((predictions > 0) & (predictions < 1))
    assert len(model.losses) == 1
    assert float(model.losses[0]) > 0
