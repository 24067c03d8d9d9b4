"""Lines that are not blank, against Python's own split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native import lines as native
from tests.examples import examples

# Much white space and many line feeds, and bytes on either side of those that are blank.
TEXTS = st.lists(
    st.sampled_from(
        [b"\n", b"\r\n", b" ", b"\t", b"\x0b\x0c", b"\x08", b"\x0e", b"\x1f", b"{}", b"x"]
    )
).map(b"".join)


def spans(data):
    """(begin, end) of each line that is not blank."""
    pieces = [piece + b"\n" for piece in data.split(b"\n")]
    pieces[-1] = pieces[-1][:-1]
    bounds = [0, *itertools.accumulate(map(len, pieces))]
    return [
        span
        for piece, span in zip(pieces, itertools.pairwise(bounds), strict=True)
        if piece.strip()
    ]


@settings(max_examples=examples(300))
@given(data=TEXTS)
def test_lines_are_those_of_split(data):
    expected = spans(data)
    count = len(expected)
    assert native.full_lines(data) == count
    assert native.behind(data, 0) == 0
    assert native.before(data, 0) == len(data)
    for records in range(1, count + 1):
        assert native.behind(data, records) == expected[records - 1][1]
        assert native.before(data, records) == expected[-records][0]
    for function in (native.behind, native.before):
        with pytest.raises(ValueError, match=f"{count + 1} lines .* there are {count}"):
            function(data, count + 1)


def test_parts_of_bytes_are_read_and_nothing_else():
    data = memoryview(b"a\nb\n\nc\n")
    assert native.full_lines(data[2:6]) == 2
    assert (native.behind(data[2:6], 2), native.before(data[2:6], 1)) == (4, 3)
    for function in (native.behind, native.before):
        with pytest.raises(ValueError, match="-1 lines"):
            function(data, -1)
    with pytest.raises(TypeError):
        native.full_lines(None)
