"""--table: its form, what it refuses, and how Python gives it."""

import pytest

from shoal.config.job import JobConfig
from shoal.config.signatures import checked
from shoal.config.table_options import MAX_ADMIT_AFTER, OPTIONS, table_options, told_options
from shoal.errors import UserError
from shoal.native import rowstore
from shoal.proto import model_bounds
from shoal.proto import shoal_pb2 as pb


def test_options_are_given_by_table_and_name():
    assert table_options("") == {}
    assert table_options("a.b.admit_after=3, user.admit-after = 2,") == {
        "a.b": {"admit_after": 3},
        "user": {"admit_after": 2},
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("user=3", r"must be NAME.OPTION=VALUE, such as user_id.admit_after=3, not 'user=3'"),
        ("user.admit_after", "must be NAME.OPTION=VALUE"),
        (".admit_after=3", "must be NAME.OPTION=VALUE"),
        ("user.admit=3", r"no option admit \(did you mean admit_after\?\); there are: admit_after"),
        (
            "u.admit_after=three",
            "three: admit_after must be an integer from 1 to 2047",
        ),
        ("u.admit_after=0", "must be an integer from 1 to 2047, not 0"),
        (f"u.admit_after={MAX_ADMIT_AFTER + 1}", "not 2048"),
        ("u.admit_after=2,u.admit_after=2", r"gives u.admit_after twice"),
    ],
)
def test_what_is_none_is_refused_before_anything_starts(text, why):
    with pytest.raises(UserError, match=why):
        JobConfig(model_def="a.b", training_data="c", table=text)


def test_python_gives_them_as_a_dict_too():
    given = {"user": {"admit_after": 3}, "item.admit_after": 2}
    assert checked("table", given, str) == "user.admit_after=3,item.admit_after=2"
    assert checked("table", ["a.admit_after=3", "b.admit_after=2"], str) == (
        "a.admit_after=3,b.admit_after=2"
    )


def test_the_bounds_are_those_of_the_row_store():
    assert MAX_ADMIT_AFTER == model_bounds.MAX_ADMIT_AFTER == rowstore.MAX_ADMIT_AFTER


def test_each_option_is_a_field_of_a_table_whose_default_is_not_told():
    assert set(OPTIONS) <= set(pb.TableSpec.DESCRIPTOR.fields_by_name)
    assert told_options(pb.TableSpec()) == []
    assert told_options(pb.TableSpec(admit_after=3)) == [
        "admit_after=3: an id gets a row at its push number 3"
    ]
