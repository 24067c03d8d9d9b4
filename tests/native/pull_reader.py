"""The reader of pulls in C beside Python's, for any bytes: on a socket, with two small tables.

What it answers, Python must read too, and as it was answered. The rest comes back as it came.
"""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from shoal.native.answering import FLAGS, Answerer
from shoal.native.dense import DenseBlock
from shoal.native.moments import Moments
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane.message import ANSWER, PREFIX_BYTES, parse, prefix
from shoal.proto.wire import frames
from tests.native.strategies import store

KIND, PUSH, DIMS, VERSION = 2, 3, (2, 3), 7
HELD = ("float32", "bfloat16")
SENDER = (3, 1, 9)
"""Worker and incarnation with a push, and its sequence."""
BEGIN = 48
"""Of a message in the buffer: its arrays are aligned then."""
ROOM_BYTES = 1024
"""Of a request: the largest answer to so few fits the buffer of a socket that nobody reads."""


def seeds() -> list[bytes]:
    """Pulls that C answers: with all fields that it reads, with few of them, and of 16 bits."""
    ids = np.array([5, -1, 2**63 - 1, 0, 2**40])
    caller = pb.PushIdentity(worker=SENDER[0], incarnation=SENDER[1])
    full = pb.PullRequest(
        caller=caller, routing_epoch=1, tables=[0, 1, 0], ids_of=[1, 0, 1], training=True
    )
    few = pb.PullRequest(routing_epoch=1, tables=[1], ids_of=[0], dense_version=-2)
    halves = pb.PullRequest(
        routing_epoch=1, tables=[0], ids_of=[0], dense_version=-1, value_type=pb.FLOAT16
    )
    return [
        frames.encode(full, [ids, ids[:2]]),
        frames.encode(few, [ids]),
        frames.encode(halves, [ids]),
    ]


class PullReader:
    """An answerer of its own, and what it must answer."""

    def __init__(self) -> None:
        self.tables = [
            store(dim, "sgd", "uniform", seed=dim, value_dtype=held)
            for dim, held in zip(DIMS, HELD, strict=True)
        ]
        self.moments = Moments(self.tables)
        self.answerer = Answerer(KIND, PUSH, [1.0])
        self.values, self.state = np.arange(3, dtype=np.float32), np.ones(2, np.float32)
        block = DenseBlock(self.values, OptimizerSpec("sgd", {}))
        self.moments.begin(block, self.state)
        self.moments.restore(VERSION, VERSION, {SENDER[0]: SENDER[1:]})
        # With a vocabulary a row is the same in training and beside it.
        self.answerer.serve_model([(table, True, False) for table in self.tables], self.moments)
        self.answerer.route(1, None)
        self.answerer.open()
        raw = bytearray(BEGIN + PREFIX_BYTES + ROOM_BYTES + 64)
        skipped = -np.frombuffer(raw, np.uint8).ctypes.data % 64
        self.buffer = memoryview(raw)[skipped : skipped + len(raw) - 64]

    def answer(self, frame: bytes) -> bytes | None:
        """The frame of the answer to one of at most ROOM_BYTES, or None: it is for Python.

        Raises AssertionError if it came back changed.
        """
        near, far = socket.socketpair()
        with near, far:
            sent = prefix(KIND, len(frame)) + frame
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            near.sendall(sent)
            near.shutdown(socket.SHUT_WR)
            far.setblocking(False)  # all that it receives is there
            flags = bytearray(FLAGS)
            try:
                for_python, start, end = self.answerer.serve(
                    far.fileno(), self.buffer, BEGIN, BEGIN, BEGIN, flags, 10.0
                )
            except ConnectionError:  # the end after the answer
                far.close()
                with near.makefile("rb") as answers:
                    answered = answers.read()
                kind, size = parse(answered)
                assert (kind, size) == (ANSWER, len(answered) - PREFIX_BYTES)
                return answered[PREFIX_BYTES:]
            assert for_python
            assert bytes(self.buffer[start:end]) == sent
            return None

    def check(self, frame: bytes) -> bool:
        """Whether a frame is answered in C.

        Raises AssertionError if not as Python reads it, WireError if Python refuses it.
        """
        if len(frame) > ROOM_BYTES:
            raise WireError(pb.BAD_REQUEST, "more bytes than there is room for")
        reply = self.answer(frame)
        try:
            request, ids = frames.decode(frame, pb.PullRequest)
        except WireError as error:
            if reply is None:
                raise
            raise AssertionError(f"C answers what Python refuses: {error}") from error
        if reply is None:
            return False
        self._compare(request, ids, *frames.decode(reply, pb.PullReply))
        return True

    def _compare(self, request: Any, ids: Any, reply: Any, found: Any) -> None:
        who = request.caller.worker, request.caller.incarnation
        applied = SENDER[2] if who == SENDER[:2] else 0
        assert (request.routing_epoch, request.whole_updates) == (1, False)
        assert (reply.version, reply.applied) == (VERSION, applied)
        wants_dense = request.dense_version != -2 and request.dense_version != VERSION
        assert reply.has_dense == wants_dense
        assert len(found) == len(request.tables) + 2 * reply.has_dense
        for table, place, rows in zip(request.tables, request.ids_of, found, strict=False):
            expected = self.tables[table].lookup(ids[place])
            travels = request.value_type or (pb.FLOAT32, pb.BFLOAT16)[table]
            if travels == pb.BFLOAT16:
                rows = (rows.astype(np.uint32) << 16).view(np.float32)
                np.testing.assert_allclose(rows, expected, rtol=2**-8)
            elif travels == pb.FLOAT16:
                np.testing.assert_array_equal(rows, expected.astype(np.float16))
            else:
                assert travels == pb.FLOAT32
                np.testing.assert_array_equal(rows, expected)
        if reply.has_dense:
            np.testing.assert_array_equal(found[-2], self.values)
            np.testing.assert_array_equal(found[-1], self.state)
