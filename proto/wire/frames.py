"""Frames: a protobuf header followed by arrays, as one bytes object.

    offset 0   magic b"SHL1"
    offset 4   length of the header, uint32 little-endian
    offset 8   the header, a protobuf message whose field `arrays` describes the arrays
    then       each array's elements, little-endian, C order, at a multiple of 8

NumPy views the arrays where they lie: nothing is copied on the way in, or they are received where
they are used. On the way out they are sent from where they lie (`Pieces`). Inside a protobuf
`bytes` field the same arrays would be copied three times more.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError

MAGIC = b"SHL1"
ALIGNMENT = 8
MAXIMUM_DIMENSIONS = 8
"""Of an array: more than any call has, and few enough to multiply."""

MAXIMUM_HEADER_BYTES = 4 << 20
"""Of a header: far above one of a model with thousands of tables."""

_PREFIX = struct.Struct("<4sI")
_ZEROS = [bytes(size) for size in range(ALIGNMENT)]

Array = npt.NDArray[Any]
Buffer = bytes | memoryview | Array

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


class Body(Protocol):
    """The bytes of a message that is being received, in their order.

    size: of all. left: of those that were not read yet.
    """

    size: int
    left: int

    def read(self, size: int) -> memoryview:
        """The next few, valid until the next call."""

    def into(self, target: memoryview) -> None:
        """Receive the next ones into a buffer."""


Header = TypeVar("Header", bound=Message)


class Pieces:
    """A message as the buffers that it is made of, for a connection to send where they lie.

    buffers: each bytes, an array, or a list of those that are to be sent together. One that is
    made while they are sent may use the memory of the one before again.
    """

    def __init__(self, size: int, buffers: Iterable[Buffer | list[Buffer]]) -> None:
        """size: bytes of all."""
        self.buffers = buffers
        self._size = size

    def __len__(self) -> int:
        return self._size

    def joined(self) -> bytes:
        """All of it as one."""
        joined = bytearray()
        for each in self.buffers:
            for one in each if isinstance(each, list) else [each]:
                joined += one.tobytes() if isinstance(one, np.ndarray) else one
        return bytes(joined)


class Layout:
    """The positions of the parts of a frame.

    head: all bytes before the arrays, whose first one follows the padding. paddings: before each
    array. size: of the whole frame.
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
        self.head = _PREFIX.pack(MAGIC, len(packed)) + packed
        self.paddings: list[bytes] = []
        position = len(self.head)
        for dtype, shape in arrays:
            padding = -position % ALIGNMENT
            self.paddings.append(_ZEROS[padding])
            position += padding + math.prod(shape) * dtype.itemsize
        self.size = position


def pieces(header: Message, arrays: Sequence[Array]) -> Pieces:
    """The frame of `header` and `arrays`, which are sent from where they lie.

    header: as `Layout` takes it. arrays: of the dtypes in `DTYPES`; copied only where they are not
    C-contiguous.
    """
    layout = Layout(header, [(array.dtype, array.shape) for array in arrays])
    buffers: list[Buffer | list[Buffer]] = [layout.head]
    for padding, array in zip(layout.paddings, arrays, strict=True):
        if padding:
            buffers.append(padding)
        if array.size:
            contiguous = array.flags.c_contiguous
            buffers.append(array if contiguous else np.ascontiguousarray(array))
    return Pieces(layout.size, buffers)


def encode(header: Message, arrays: Sequence[Array]) -> bytes:
    """Pack `header` and `arrays` into a frame.

    header: a message with a repeated ArraySpec field `arrays`, which is set here.
    arrays: of the dtypes in `DTYPES`; each is copied once, into the frame.
    """
    return pieces(header, arrays).joined()


def header_of(frame: bytes | memoryview, header_type: type[Header]) -> Header:
    """The header of `frame` alone. Raises WireError(BAD_REQUEST) if it has none of this type."""
    end = _header_end(frame, len(frame), header_type.DESCRIPTOR.name)
    return parsed(header_type, frame[_PREFIX.size : end])


def decode(
    frame: bytes | memoryview | Pieces, header_type: type[Header]
) -> tuple[Header, list[Array]]:
    """The header and views of the arrays of `frame`, which are read-only where the frame is.

    An array that does not lie at a multiple of its elements' size is copied: a frame may come at
    any place of a buffer.

    Raises WireError(BAD_REQUEST) if the bytes are not a frame of this header.
    """
    if isinstance(frame, Pieces):
        frame = frame.joined()
    name = header_type.DESCRIPTOR.name
    position = _header_end(frame, len(frame), name)
    header = parsed(header_type, frame[_PREFIX.size : position])
    arrays = []
    for dtype, shape, padding in _arrays(header, position, len(frame), name):
        position += padding
        count = math.prod(shape)
        # frombuffer refuses an empty array at the very end.
        array = np.frombuffer(frame, dtype, count, position) if count else np.empty(0, dtype)
        arrays.append((array if array.flags.aligned else array.copy()).reshape(shape))
        position += array.nbytes
    return header, arrays


Place = Callable[[Any, list[tuple[np.dtype[Any], tuple[int, ...]]]], Sequence[Array]]


def receive(body: Body, header_type: type[Header], place: Place) -> tuple[Header, list[Array]]:
    """The header and the arrays of a frame that is being received, each into its place.

    place: of a header, and of dtype and shape of each array: the arrays to be filled, C-contiguous,
    of these dtypes and shapes. Called before a byte of them is read.

    Raises WireError(BAD_REQUEST) as `decode`, and what `place` raises.
    """
    name = header_type.DESCRIPTOR.name
    position = _header_end(body.read(min(_PREFIX.size, body.left)), body.size, name)
    header = parsed(header_type, body.read(position - _PREFIX.size))
    found = _arrays(header, position, body.size, name)
    targets = place(header, [(dtype, shape) for dtype, shape, _ in found])
    for target, (dtype, shape, padding) in zip(targets, found, strict=True):
        if target.dtype != dtype or target.shape != shape:
            raise ValueError(f"{target.dtype} {target.shape} is no place for {dtype} {shape}")
        if padding:
            body.read(padding)
        if target.size:
            body.into(target.data.cast("B"))
    return header, list(targets)


def parsed(kind: type[Header], data: bytes | memoryview) -> Header:
    """A message. Raises WireError(BAD_REQUEST)."""
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise _no_frame(kind.DESCRIPTOR.name, error) from error


def _no_frame(name: str, why: object) -> WireError:
    return WireError(pb.BAD_REQUEST, f"not a frame of {name}: {why}")


def _header_end(start: bytes | memoryview, size: int, name: str) -> int:
    """The end of the header of a frame of `size` bytes that begins so."""
    try:
        magic, length = _PREFIX.unpack_from(start)
    except struct.error as error:
        raise _no_frame(name, error) from error
    if magic != MAGIC:
        raise _no_frame(name, f"starts with {magic!r}")
    if _PREFIX.size + length > size or length > MAXIMUM_HEADER_BYTES:
        raise _no_frame(name, f"a header of {length} bytes in {size}")
    return int(_PREFIX.size + length)


def _arrays(
    header: Message, position: int, size: int, name: str
) -> list[tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Dtype, shape and padding before it of each array that follows at `position`."""
    found = []
    specs: _HasArrays = header  # type: ignore[assignment]
    for spec in specs.arrays:
        shape = tuple(spec.shape)
        dtype = DTYPES.get(spec.data_type)
        if dtype is None:
            raise _no_frame(name, f"an array of type {spec.data_type}")
        if len(shape) > MAXIMUM_DIMENSIONS:
            raise _no_frame(name, f"an array of {len(shape)} dimensions")
        elements = math.prod(shape)
        # One without elements may be as wrong: NumPy looks at its extents, too.
        bounded = elements or math.prod(extent or 1 for extent in shape)
        if bounded * dtype.itemsize > sys.maxsize:
            raise _no_frame(name, f"an array of shape {list(shape)}")
        padding = -position % ALIGNMENT
        position += padding + elements * dtype.itemsize
        found.append((dtype, shape, padding))
    if position != size:
        raise _no_frame(name, f"arrays up to byte {position} of {size}")
    return found
