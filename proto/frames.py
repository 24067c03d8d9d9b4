"""Frames: a protobuf header followed by arrays, as one bytes object.

    offset 0   magic b"SHL1"
    offset 4   length of the header, uint32 little-endian
    offset 8   the header, a protobuf message whose field `arrays` describes the arrays
    then       each array's elements, little-endian, C order, at a multiple of 8

NumPy views the arrays where they lie: nothing is copied on the way in. On the way out
each array is written once, by whoever computes it straight into the frame where a
`FrameWriter` is used. Inside a protobuf `bytes` field the same arrays would be copied
three times more.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.memory import unfilled_bytes

MAGIC = b"SHL1"
ALIGNMENT = 8
MAXIMUM_DIMENSIONS = 8
"""Of an array: more than any call has, and few enough to multiply."""

_PREFIX = struct.Struct("<4sI")

Array = npt.NDArray[Any]

DTYPES: dict[pb.DataType, np.dtype[Any]] = {
    pb.INT64: np.dtype("<i8"),
    pb.FLOAT32: np.dtype("<f4"),
    # NumPy has no bfloat16 of its own: the bits travel as uint16.
    pb.BFLOAT16: np.dtype("<u2"),
    pb.FLOAT16: np.dtype("<f2"),
    pb.INT32: np.dtype("<i4"),
    pb.FLOAT64: np.dtype("<f8"),
}
DATA_TYPES = {dtype: data_type for data_type, dtype in DTYPES.items()}


class _HasArrays(Protocol):
    @property
    def arrays(self) -> Any: ...


Header = TypeVar("Header", bound=Message)


def _padding(position: int) -> int:
    return -position % ALIGNMENT


class FrameWriter:
    """A frame whose arrays are filled in place: `arrays` are views to write to.

    The frame is whole once each of them is written; `frame` may then be sent, and the
    views must not be written to any more.
    """

    def __init__(
        self, header: Message, arrays: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]
    ) -> None:
        """header: a message with a repeated ArraySpec field `arrays`, which is set here.

        arrays: dtype (one of `DTYPES`) and shape of each.
        """
        specs: _HasArrays = header  # type: ignore[assignment]
        del specs.arrays[:]
        for dtype, shape in arrays:
            specs.arrays.add(data_type=DATA_TYPES[dtype], shape=shape)
        packed = header.SerializeToString()
        first = _PREFIX.size + len(packed)
        places = []
        position = first
        for dtype, shape in arrays:
            position += _padding(position)
            places.append(position)
            position += math.prod(shape) * dtype.itemsize
        self.frame, view = unfilled_bytes(position)
        _PREFIX.pack_into(view, 0, MAGIC, len(packed))
        view[_PREFIX.size : first] = packed
        self.arrays: list[Array] = []
        end = first
        for (dtype, shape), place in zip(arrays, places, strict=True):
            view[end:place] = bytes(place - end)
            count = math.prod(shape)
            end = place + count * dtype.itemsize
            array = np.frombuffer(view[place:end], dtype, count)
            self.arrays.append(array.reshape(shape))


def encode(header: Message, arrays: Sequence[Array]) -> bytes:
    """Pack `header` and `arrays` into a frame.

    header: a message with a repeated ArraySpec field `arrays`, which is set here.
    arrays: of the dtypes in `DTYPES`; each is copied once, into the frame.
    """
    writer = FrameWriter(header, [(array.dtype, array.shape) for array in arrays])
    for target, array in zip(writer.arrays, arrays, strict=True):
        np.copyto(target, array)
    return writer.frame


def header_of(frame: bytes, header_type: type[Header]) -> Header:
    """The header of `frame` alone. Raises WireError(BAD_REQUEST) if it has none of this type."""
    try:
        return _split(frame, header_type)[0]
    except (ValueError, struct.error, DecodeError) as error:
        raise _no_frame(header_type, error) from error


def _split(frame: bytes, header_type: type[Header]) -> tuple[Header, int]:
    """The header, and where it ends."""
    magic, length = _PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise ValueError(f"starts with {magic!r}")
    end = _PREFIX.size + length
    return header_type.FromString(frame[_PREFIX.size : end]), end


def _no_frame(header_type: type[Header], error: Exception) -> WireError:
    return WireError(pb.BAD_REQUEST, f"not a frame of {header_type.DESCRIPTOR.name}: {error}")


def decode(frame: bytes, header_type: type[Header]) -> tuple[Header, list[Array]]:
    """The header and read-only views of the arrays of `frame`.

    Raises WireError(BAD_REQUEST) if the bytes are not a frame of this header.
    """
    try:
        header, position = _split(frame, header_type)
        arrays = []
        specs: _HasArrays = header  # type: ignore[assignment]
        for spec in specs.arrays:
            position += _padding(position)
            dtype = DTYPES[spec.data_type]
            shape = tuple(spec.shape)
            if len(shape) > MAXIMUM_DIMENSIONS:
                raise ValueError(f"an array of {len(shape)} dimensions")
            if any(extent < 0 for extent in shape):
                raise ValueError(f"an array of shape {list(shape)}")
            count = 1
            for extent in shape:
                count *= extent
            # frombuffer refuses a count beyond the end, which is the check we need;
            # an empty array at the very end is the one case it refuses wrongly.
            array = np.frombuffer(frame, dtype, count, position) if count else np.empty(0, dtype)
            arrays.append(array.reshape(shape))
            position += array.nbytes
        if position != len(frame):
            raise ValueError(f"{len(frame) - position} bytes after the last array")
    except (ValueError, KeyError, OverflowError, struct.error, DecodeError) as error:
        raise _no_frame(header_type, error) from error
    return header, arrays
