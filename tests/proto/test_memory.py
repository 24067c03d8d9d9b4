"""Bytes that are filled in place are whole, ordinary bytes."""

import gc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.memory import keep_freed_memory, unfilled_bytes


@given(st.binary(max_size=5000))
def test_filled_bytes_are_equal_to_their_content(content):
    made, view = unfilled_bytes(len(content))
    view[:] = content
    assert type(made) is bytes
    assert made == content
    assert hash(made) == hash(content)
    assert made + b"\0" == content + b"\0"


def test_a_view_keeps_its_bytes_alive():
    made, view = unfilled_bytes(1 << 20)
    array = np.frombuffer(view, np.int64)
    array[:] = 7
    del made, view
    gc.collect()
    noise = [bytes(1 << 20) for _ in range(8)]
    assert (array == 7).all()
    assert noise


def test_the_setting_is_known_here():
    assert keep_freed_memory()
