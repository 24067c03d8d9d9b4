"""tf.train.Example by its bytes: whole, unpacked, damaged. tests/data compares with TensorFlow."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.native import examples as native
from tests.examples import examples

WANTED = [(b"a", native.INTEGERS, False), (b"b", native.FLOATS, False), (b"c", native.BYTES, False)]


def field(number, content):
    """A field of variable length, shorter than 128 bytes."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def message(features, number=1):
    """Features by name: bytes of each."""
    entries = (field(1, field(1, name) + field(2, value)) for name, value in features.items())
    return field(number, b"".join(entries))


INTEGERS = field(3, field(1, b"\x05\x06"))
FLOATS = field(2, field(1, struct.pack("<2f", 0.5, -0.5)))
TEXTS = field(1, field(1, b"xyz") + field(1, b""))
WHOLE = message({b"a": INTEGERS, b"b": FLOATS, b"c": TEXTS, b"other": INTEGERS})


def test_values_packed_or_not():
    plain = {
        b"a": field(3, b"\x08\x05\x08\x06"),
        b"b": field(2, b"\x0d" + struct.pack("<f", 0.5) + b"\x0d" + struct.pack("<f", -0.5)),
        b"c": TEXTS,
    }
    for record in (WHOLE, message(plain)):
        (ints, _, a, _), (floats, _, b, _), (text, ends, c, _) = native.columns_of([record], WANTED)
        assert (ints.tolist(), floats.tolist(), text.tobytes()) == ([5, 6], [0.5, -0.5], b"xyz")
        assert (ends.tolist(), a.tolist(), b.tolist(), c.tolist()) == ([3, 3], [2], [2], [2])
    assert native.features_in(WHOLE)[0] == (b"a", False, INTEGERS)


def test_lists_of_a_sequence():
    steps = field(1, INTEGERS) + field(1, field(3, field(1, b"")))
    record = message({b"a": INTEGERS}) + message({b"a": steps}, number=2)
    context, lists = native.columns_of([record, b""], [WANTED[0], (b"a", native.INTEGERS, True)])
    assert [each.tolist() for each in context] == [[5, 6], [], [2, native.ABSENT], []]
    assert [each.tolist() for each in lists] == [[5, 6], [], [2, 0], [2, native.ABSENT]]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (WHOLE[:-1], "damaged"),
        (message({b"a": FLOATS}), "feature 'a' is of another type"),
        (message({b"a": INTEGERS}) * 2, "damaged"),
        (message({b"b": field(2, field(1, b"abc"))}), "damaged"),
        (b"\xff" * 12, "damaged"),
    ],
)
def test_what_is_wrong_is_told_with_the_record(record, what):
    with pytest.raises(ValueError, match=what) as raised:
        native.columns_of([WHOLE, record], WANTED)
    assert raised.value.args[0] == 1


def test_a_list_of_nothing_is_of_any_type():
    ((ints, _, counts, _),) = native.columns_of([message({b"a": field(1, b"")})], WANTED[:1])
    assert (ints.tolist(), counts.tolist()) == ([], [0])


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(WHOLE)), st.integers(0, 4))
def test_bytes_of_any_kind_are_read_or_refused(noise, at, dropped):
    """Never beyond their end, which the sanitizers see."""
    changed = WHOLE[:at] + noise + WHOLE[at + dropped :]
    for text in (noise, changed, WHOLE[:at]):
        with contextlib.suppress(ValueError):
            native.columns_of([text], [*WANTED, (b"a", native.INTEGERS, True)])
        with contextlib.suppress(ValueError):
            native.features_in(text)


def test_arrays_outlive_the_call():
    ((ints, _, _, _),) = native.columns_of([WHOLE], WANTED[:1])
    native.columns_of([message({b"a": field(3, field(1, b"\x07\x07"))})], WANTED[:1])
    np.testing.assert_array_equal(ints, [5, 6])
