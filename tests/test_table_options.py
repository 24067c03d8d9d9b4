"""--table: its form, what it refuses, and how Python gives it."""

import pytest

from shoal.config.groups.event_time import EventTime
from shoal.config.job import JobConfig
from shoal.config.signatures import checked
from shoal.config.spans import seconds_of, span_of
from shoal.config.table_options import (
    MAX_ADMIT_AFTER,
    OPTIONS,
    fields_of,
    table_options,
    told_options,
)
from shoal.errors import UserError
from shoal.native import rowstore
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values import model_bounds


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
        ("u.expire_after=14", "must be a number with a unit: 2w, 14d, 36h, 90m or 600s, not '14'"),
        ("u.expire_after=0d", "expire_after must be a number with a unit"),
        ("u.expire_after=14d", "u.expire_after=14d: nothing tells the time .* add --event-time"),
        ("u.max_rows=0", "max_rows must be an integer above 0, not 0"),
        ("u.max_rows=2e6", "max_rows must be an integer above 0, not '2e6'"),
        ("u.expire=14d", r"no option expire \(did you mean expire_after\?\)"),
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
    options = table_options("u.expire_after=36h,u.max_rows=2_000_000")["u"]
    assert told_options(pb.TableSpec(**fields_of(options))) == [
        "expire_after=36h: an id is removed 36h of event time after its last push",
        "max_rows=2000000: 2,000,000 rows at most; at more, those of least use are removed",
    ]
    assert fields_of({name: each.default for name, each in OPTIONS.items()}) == {
        "admit_after": 1,
        "expire_after": 0,
        "max_rows": 0,
    }


@pytest.mark.parametrize(
    ("text", "seconds", "shortest"),
    [
        ("2w", 1_209_600, "14d"),
        ("14d", 1_209_600, "14d"),
        ("36h", 129_600, "36h"),
        ("48h", 172_800, "2d"),
        ("90m", 5_400, "90m"),
        (" 61s ", 61, "61s"),
    ],
)
def test_spans_have_a_unit(text, seconds, shortest):
    assert seconds_of(text) == seconds
    assert span_of(seconds) == shortest


@pytest.mark.parametrize(
    "text", ["", "14", "d", "0h", "1.5d", "-3d", "14 d", "999999999w", None, 14]
)
def test_what_is_no_span_is_refused(text):
    with pytest.raises(ValueError, match="is not a number with a unit"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "column", "unit"),
    [("at", "at", ""), ("at:ms", "at", "ms"), ("a:b", "a:b", ""), ("a:b:s", "a:b", "s")],
)
def test_an_event_time_is_a_column_and_its_unit(text, column, unit):
    assert EventTime.parse(text) == EventTime(column, unit)


def test_without_the_flag_there_is_no_event_time():
    assert EventTime.parse("") is None
    assert EventTime.parse(":ms") == EventTime(":ms")
