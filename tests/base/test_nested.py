"""Nested values without a framework."""

from collections import OrderedDict, namedtuple

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.nested import leaves, mapped, named_leaves

Pair = namedtuple("Pair", "left right")

NESTED = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("badc"), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


@given(NESTED)
def test_leaves_come_as_keras_has_them(nested):
    assert leaves(nested) == keras.tree.flatten(nested)


@given(NESTED)
def test_mapping_keeps_the_nest_and_the_types(nested):
    seen = []

    def noted(value):
        seen.append(value)
        return value + 1

    made = mapped(noted, nested)
    assert seen == leaves(nested)
    assert leaves(made) == [each + 1 for each in seen]
    back = mapped(lambda value, old: (value - 1 == old) and old, made, nested)
    assert back == nested
    assert repr(back) == repr(nested)  # the order of keys and the types, too


@given(NESTED)
def test_paths_lead_to_their_leaves(nested):
    assert [leaf for _, leaf in named_leaves(nested)] == leaves(nested)
    for path, leaf in named_leaves(nested):
        value = nested
        for step in path.split("/") if path else ():
            value = value[step] if isinstance(value, dict) else value[int(step)]
        assert value == leaf


def test_none_is_a_leaf_and_a_dict_of_another_class_becomes_a_dict():
    assert leaves({"a": None, "b": (None, 1)}) == [None, None, 1]
    assert type(mapped(str, OrderedDict(b=1, a=2))) is dict


def test_keys_that_cannot_be_compared_come_in_their_order():
    assert leaves({"a": 1, 0: 2}) == [1, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"b": 1}), ((1, 2), (1,)), ([1], (1,)), ((1,), 1), (1, [1]), ({"a": 1}, [1])],
)
def test_another_nest_is_refused(one, other):
    with pytest.raises(ValueError, match="and"):
        mapped(lambda *_: None, one, other)
