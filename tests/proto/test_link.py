"""Reading from a connection of the data plane, whatever its buffer has at the moment."""

import socket
import time

import pytest

from shoal.proto.plane.link import ROOM_BYTES, Link
from shoal.proto.plane.message import END, PART, PREFIX_BYTES, prefix

PATIENCE = 60.0


@pytest.fixture
def ends():
    """A socket, and the connection at its other end."""
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    link = Link(far)
    yield near, link
    near.close()
    link.close()


def received(link):
    """The parts of a stream that has come."""
    parts = []
    while True:
        kind, size = link.next_prefix(time.monotonic() + PATIENCE)
        if kind == END:
            return parts
        part = memoryview(bytearray(size))
        link.into(part, time.monotonic() + PATIENCE)
        parts.append(bytes(part))


@pytest.mark.parametrize("left", [0, 1, 8, PREFIX_BYTES - 1, PREFIX_BYTES, PREFIX_BYTES + 5])
def test_a_part_of_a_stream_may_come_with_the_beginning_of_the_next_one(ends, left):
    """left: bytes of the buffer after the first part, with which the next message begins."""
    near, link = ends
    parts = [bytes([1]) * (ROOM_BYTES - left), b"second", bytes([3]) * 100]
    whole = b"".join(prefix(PART, len(each)) + each for each in parts) + prefix(END, 0)
    near.sendall(whole)
    assert received(link) == parts


def test_a_small_message_goes_on_beyond_the_buffer(ends):
    """It is read as one, and its beginning was received with the message before."""
    near, link = ends
    first, second = bytes([1]) * (ROOM_BYTES - 1000), bytes(range(250)) * 20
    near.sendall(prefix(PART, len(first)) + first + prefix(PART, len(second)) + second)
    for each in (first, second):
        end = time.monotonic() + PATIENCE
        assert link.next_prefix(end) == (PART, len(each))
        assert bytes(link.read(len(each), end)) == each
