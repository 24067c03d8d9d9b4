"""Likely spellings."""

import pyarrow as pa
import pytest

from shoal.base.words import near, near_or_all
from shoal.data.reader import check_columns
from shoal.errors import UserError


def test_a_name_of_another_case_is_near():
    assert near("USER", ["user", "item"]) == " (did you mean user?)"
    assert near("user", ["User", "USER", "x"], most=1) == " (did you mean User?)"
    assert near("user", ["x"]) == ""


@pytest.mark.parametrize("name", [" user", "user\t", "\ufeffuser", "user\u00a0"])
def test_what_is_not_seen_of_a_name_is_in_quotes(name):
    assert near("user", [name]) == f" (did you mean {name!r}?)"
    assert near_or_all("other", [name, "a"]) == f"; there are: {name!r}, a"
    with pytest.raises(UserError) as caught:
        check_columns(pa.schema([(name, pa.int64())]), ["user"], "--data")
    assert str(caught.value) == (
        f"--data: there is no column 'user' (did you mean {name!r}?); the columns are {name!r}"
    )
