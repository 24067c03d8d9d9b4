"""Columns that note what is taken of them, however it is taken."""

import copy
import pickle

import numpy as np
import pyarrow as pa
import pytest

from shoal.data.columns import ListColumn
from shoal.worker.engines.host.taken import TakenColumns, UnreadColumnError

X, LISTS = np.arange(3), ListColumn(np.arange(4), np.array([1, 3, 0]))


def columns(*unread):
    return TakenColumns({"x": X, "lists": LISTS}, ["x", "lists", *unread])


def called(**given):
    return given


ALL = {
    "dict": dict,
    "unpacked": lambda given: {**given},
    "arguments": lambda given: called(**given),
    "copied": lambda given: given.copy(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda given: pickle.loads(pickle.dumps(given)),
    "left": lambda given: given | {"new": 1},
    "right": lambda given: {"new": 1} | given,
    "items": lambda given: dict(given.items()),
    "values": lambda given: dict(zip(given, given.values(), strict=True)),
    "comprehension": lambda given: {name: given[name] for name in given},
    "updated": lambda given: (new := {}, new.update(given))[0],
    "pairs": lambda given: dict(iter(given.items())),
    "reversed": lambda given: {name: given[name] for name in reversed(given)},
    "popped": lambda given: {name: given.pop(name) for name in list(given)},
    "popitem": lambda given: dict(given.popitem() for _ in range(len(given))),
}


@pytest.mark.parametrize("take", ALL.values(), ids=ALL)
def test_all_are_taken_by_what_hands_them_on(take):
    given = columns()
    found = take(given)
    assert given.taken == {"x", "lists"}
    assert type(found) is dict
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["lists"].values, LISTS.values)


@pytest.mark.parametrize("take", ALL.values(), ids=ALL)
def test_what_was_not_read_is_noticed(take):
    given = columns("other")
    with pytest.raises(UnreadColumnError, match="not read: other"):
        take(given)
    assert given.unread == {"other"}


def test_other_libraries_take_them_as_a_dict():
    pandas = pytest.importorskip("pandas")
    for make in (pandas.DataFrame, pa.table):
        given = TakenColumns({"x": X, "y": X}, ["x", "y"])
        assert isinstance(given, dict)
        made = make(given)
        assert made.shape == (3, 2)
        assert given.taken == {"x", "y"}


NONE = {
    "names": list,
    "sorted": sorted,
    "keys": lambda given: list(given.keys()),
    "in": lambda given: ("x" in given, "other" in given, "z" in given),
    "length": len,
    "text": repr,
    "true": bool,
    "deleted": lambda given: given.__delitem__("x"),
    "replaced": lambda given: (given.__setitem__("x", 1), given["x"], given.update(other=2)),
}


@pytest.mark.parametrize("look", NONE.values(), ids=NONE)
def test_names_take_nothing(look):
    given = columns("other")
    look(given)
    assert not given.taken
    assert not given.unread


def test_a_column_is_a_copy_and_the_same_each_time():
    given = columns()
    for name, source in (("x", X), ("lists", LISTS)):
        assert given[name] is given[name] is given.get(name)
        of = (lambda column: column.values) if name == "lists" else (lambda column: column)
        assert not np.shares_memory(of(given[name]), of(source))
    given["x"] += 1
    np.testing.assert_array_equal(given["x"], X + 1)


def test_a_name_that_there_is_not_is_a_key_error():
    given = columns()
    with pytest.raises(KeyError, match="z"):
        given["z"]
    assert given.absent == {"z"}
    assert given.get("z", 3) == 3
    assert given.setdefault("z", 4) == 4
    given |= {"x": 5}
    assert [given["z"], given["x"]] == [4, 5]
    del given["z"], given["x"]
    assert list(given) == ["lists"]
    with pytest.raises(KeyError):
        del given["z"]
