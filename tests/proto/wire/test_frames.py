"""Frames survive the trip, and bytes that are no frames are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.wire import frames

ARRAYS = st.lists(
    st.sampled_from(["<i8", "<f4", "<f2", "<u2", "<i4", "<f8"]).flatmap(
        lambda dtype: hnp.arrays(
            dtype, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=7)
        )
    ),
    max_size=5,
)


@given(ARRAYS, st.integers(0, 2**40))
def test_arrays_and_header_come_back_as_they_went(arrays, epoch):
    frame = frames.encode(pb.PullRequest(routing_epoch=epoch, tables=[3, 1]), arrays)
    header, decoded = frames.decode(frame, pb.PullRequest)
    assert header.routing_epoch == epoch
    assert list(header.tables) == [3, 1]
    assert len(decoded) == len(arrays)
    for before, after in zip(arrays, decoded, strict=True):
        assert after.dtype == before.dtype
        assert after.shape == before.shape
        assert after.tobytes() == before.tobytes()


def test_decoded_arrays_are_views_of_the_frame():
    frame = frames.encode(pb.PullRequest(), [np.arange(5)])
    _, (array,) = frames.decode(frame, pb.PullRequest)
    assert not array.flags.owndata
    assert not array.flags.writeable


@given(ARRAYS, st.data())
def test_a_damaged_frame_is_refused_or_decodes_to_something_of_the_same_size(arrays, data):
    frame = frames.encode(pb.PullRequest(routing_epoch=7), arrays)
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(WireError) as caught:
        frames.decode(frame[:cut], pb.PullRequest)
    assert caught.value.kind == pb.BAD_REQUEST
    with pytest.raises(WireError):
        frames.decode(frame + b"\0", pb.PullRequest)


@pytest.mark.parametrize("junk", [b"", b"SHL", b"PK\x03\x04" + bytes(60), b"SHL1\xff\xff\xff\xff"])
def test_junk_is_refused(junk):
    with pytest.raises(WireError, match="not a frame of PullRequest"):
        frames.decode(junk, pb.PullRequest)


@given(ARRAYS, st.integers(0, 8))
def test_arrays_are_aligned_wherever_their_frame_lies(arrays, place):
    frame = bytes(place) + frames.encode(pb.PullRequest(), arrays)
    _, decoded = frames.decode(memoryview(frame)[place:], pb.PullRequest)
    assert all(each.flags.aligned for each in decoded)
    assert [each.tobytes() for each in decoded] == [each.tobytes() for each in arrays]
