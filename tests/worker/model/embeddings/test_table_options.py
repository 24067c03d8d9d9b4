"""Options of tables: by the layer, by --table in its place, and refused where a table has none."""

import keras
import numpy as np
import pytest

import shoal.layers
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.worker.model.embeddings.given_weights import taking_weights
from shoal.worker.model.embeddings.keras_embeddings import tables_above
from shoal.worker.model.embeddings.sharing import sharing_refused
from shoal.worker.model.embeddings.table_options import check_lifecycle, chosen_options
from shoal.worker.model.keras_models import served_tables

LAYERS = {
    "users": shoal.layers.Embedding(2, name="users", admit_after=3, expire_after="7d"),
    "items": shoal.layers.Embedding(2, name="items", max_rows=500),
}
TABLES = served_tables(LAYERS, [], 0, "model.py")


def served(**arguments):
    """A plain keras.layers.Embedding that the servers hold."""
    layer = keras.layers.Embedding(50, 4, **arguments)
    with tables_above(0):
        layer.build()
    return layer


NONE = {"admit_after": 1, "expire_after": None, "max_rows": None}


def test_the_layer_says_and_the_flag_says_otherwise():
    assert chosen_options(TABLES, "") == {
        "users": NONE | {"admit_after": 3, "expire_after": "7d"},
        "items": NONE | {"max_rows": 500},
    }
    flags = "users.admit_after=1,items.admit_after=5,items.max_rows=900,users.expire_after=36h"
    assert chosen_options(TABLES, flags) == {
        "users": NONE | {"expire_after": "36h"},
        "items": NONE | {"admit_after": 5, "max_rows": 900},
    }


def test_a_plain_embedding_on_the_servers_has_options_too():
    tables = served_tables({"plain": served(name="plain")}, [], 0, "model.py")
    flags = "plain.admit_after=4,plain.max_rows=40"
    assert chosen_options(tables, flags) == {"plain": NONE | {"admit_after": 4, "max_rows": 40}}


def test_a_table_that_there_is_not_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match=r"'user' \(did you mean users\?\).*are users, items"):
        chosen_options(TABLES, "user.admit_after=2")
    with pytest.raises(UserError, match="it has none"):
        chosen_options({}, "user.admit_after=2")


def test_a_table_whose_rows_are_all_there_has_no_admission():
    layer = served(name="given")
    with taking_weights("model.py"):
        layer.set_weights([np.ones((50, 4), np.float32)])
    tables = served_tables({"given": layer}, [], 0, "model.py")
    for option, value in (("admit_after", "2"), ("expire_after", "7d"), ("max_rows", "9")):
        with pytest.raises(
            UserError, match=f"'given' has {option}={value}, but its rows are given"
        ):
            chosen_options(tables, f"given.{option}={value}")


def config(**given):
    return JobConfig(model_def="a.b", training_data="c", **{"event_time": "at:s"} | given)


def test_expiry_needs_the_time_of_records():
    chosen = chosen_options(TABLES, "")
    check_lifecycle(TABLES, chosen, config())
    with pytest.raises(UserError, match="'users' has expire_after=7d, but nothing tells the time"):
        check_lifecycle(TABLES, chosen, config(event_time=""))


def test_a_cap_leaves_each_server_some_rows():
    chosen = chosen_options(TABLES, "")
    check_lifecycle(TABLES, chosen, config(servers="7"))
    with pytest.raises(UserError, match=r"'items' has max_rows=500, which leaves 62 rows .*512"):
        check_lifecycle(TABLES, chosen, config(servers="8"))


@pytest.mark.parametrize("name", ["users", "items"])
def test_a_table_that_is_not_trained_neither_expires_nor_has_a_cap(name):
    with pytest.raises(UserError, match=f"table '{name}' has .*, but it is not trained"):
        check_lifecycle(
            served_tables(LAYERS, [name], 0, "model.py"), chosen_options(TABLES, ""), config()
        )


@pytest.mark.parametrize("value", [0, 2048, 2.0, True, "3", None])
def test_a_layer_takes_no_other_number(value):
    with pytest.raises(UserError, match="embedding 'users': admit_after must be an integer from 1"):
        shoal.layers.Embedding(2, name="users", admit_after=value)


@pytest.mark.parametrize("given", [{"expire_after": "7"}, {"expire_after": 7}, {"max_rows": 1.5}])
def test_a_layer_takes_no_other_span_or_cap(given):
    (name,) = given
    with pytest.raises(UserError, match=f"embedding 'users': {name} must be a"):
        shoal.layers.Embedding(2, name="users", **given)


def test_options_are_in_the_configuration_of_the_layer():
    again = shoal.layers.Embedding.from_config(LAYERS["users"].get_config())
    assert (again.admit_after, again.expire_after, again.max_rows) == (3, "7d", None)
    assert shoal.layers.Embedding.from_config(LAYERS["items"].get_config()).max_rows == 500


def test_layers_that_share_a_table_have_the_same_options():
    one, other = (shoal.layers.Embedding(2, table="t", admit_after=k) for k in (2, 3))
    assert (
        sharing_refused(one, other)
        == "two embedding layers share table 't', but differ in admit_after"
    )
    assert sharing_refused(one, shoal.layers.Embedding(2, table="t", admit_after=2)) is None
