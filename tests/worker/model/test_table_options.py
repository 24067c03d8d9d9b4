"""Options of tables: by the layer, by --table in its place, and refused where a table has none."""

import keras
import numpy as np
import pytest

import shoal.layers
from shoal.errors import UserError
from shoal.worker.model.keras_embeddings import tables_above
from shoal.worker.model.lookups import sharing_refused
from shoal.worker.model.table_options import chosen_options

LAYERS = {
    "users": shoal.layers.Embedding(2, name="users", admit_after=3),
    "items": shoal.layers.Embedding(2, name="items"),
}


def served(**arguments):
    """A plain keras.layers.Embedding that the servers hold."""
    layer = keras.layers.Embedding(50, 4, **arguments)
    with tables_above(0):
        layer.build()
    return layer


def test_the_layer_says_and_the_flag_says_otherwise():
    assert chosen_options(LAYERS, "") == {"users": {"admit_after": 3}, "items": {"admit_after": 1}}
    assert chosen_options(LAYERS, "users.admit_after=1,items.admit_after=5") == {
        "users": {"admit_after": 1},
        "items": {"admit_after": 5},
    }


def test_a_plain_embedding_on_the_servers_has_options_too():
    tables = {"plain": served(name="plain")}
    assert chosen_options(tables, "plain.admit_after=4") == {"plain": {"admit_after": 4}}


def test_a_table_that_there_is_not_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match=r"'user' \(did you mean users\?\).*are users, items"):
        chosen_options(LAYERS, "user.admit_after=2")
    with pytest.raises(UserError, match="it has none"):
        chosen_options({}, "user.admit_after=2")


def test_a_table_whose_rows_are_all_there_has_no_admission():
    layer = served(name="given")
    layer.set_weights([np.ones((50, 4), np.float32)])
    with pytest.raises(UserError, match="'given' has admit_after=2, but its rows are given by"):
        chosen_options({"given": layer}, "given.admit_after=2")


@pytest.mark.parametrize("value", [0, 2048, 2.0, True, "3", None])
def test_a_layer_takes_no_other_number(value):
    with pytest.raises(UserError, match="embedding 'users': admit_after must be an integer from 1"):
        shoal.layers.Embedding(2, name="users", admit_after=value)


def test_options_are_in_the_configuration_of_the_layer():
    again = shoal.layers.Embedding.from_config(LAYERS["users"].get_config())
    assert again.admit_after == 3


def test_layers_that_share_a_table_have_the_same_options():
    one, other = (shoal.layers.Embedding(2, table="t", admit_after=k) for k in (2, 3))
    assert (
        sharing_refused(one, other)
        == "two embedding layers share table 't', but differ in admit_after"
    )
    assert sharing_refused(one, shoal.layers.Embedding(2, table="t", admit_after=2)) is None
