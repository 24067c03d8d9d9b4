"""Servers that note what they are sent and say what a test wants, behind real connections."""

import contextlib
import socket
import threading
from functools import partialmethod
from unittest import mock

import numpy as np

from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.circuit import Circuit
from shoal.proto.plane.client import Pool
from shoal.proto.plane.link import Link
from shoal.proto.plane.message import ANSWER, PREFIX_BYTES, parse, prefix
from shoal.proto.values.routing import Routing
from shoal.worker.servers.calls import DenseValues, ServerCalls
from shoal.worker.servers.fan_out import FannedOut
from tests.native import tls_ends

NOWHERE = "127.0.0.1:1"


class Server(threading.Thread):
    """The other end of one connection.

    noted: the messages that came. answer: of the bytes of a message, the whole message that it
    answers; None: it ends the connection.
    """

    def __init__(self, end, secured=None):
        """secured: TLS on that end, which has met the other one; None without."""
        super().__init__(daemon=True)
        self._end = end
        self._secured = secured
        self.noted = []
        self.answer = None
        self.start()

    def run(self):
        with self._end, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while start := self._read(PREFIX_BYTES):
                body = self._read(parse(start)[1])
                self.noted.append(start + body)
                said = self.answer(body)
                if said is None:
                    return
                self._say(said)

    def _read(self, size):
        found = bytearray(size)
        if self._secured is not None:
            return bytes(found) if not size or self._secured.receive(found, 1e6, True) else b""
        if size and not self._end.recv_into(found, size, socket.MSG_WAITALL):
            return b""
        return bytes(found)

    def _say(self, data):
        if self._secured is None:
            self._end.sendall(data)
        else:
            self._secured.send([data], 60.0)


class Recorded(ServerCalls):
    """A worker's calls to such servers, each of which has a connection that is idle."""

    def __init__(self, count, *, tls=False):
        self.servers = []
        self._circuits = []
        self._pools = []
        for index in range(count):
            near, far = socket.socketpair()
            secured = [tls_ends.in_c(near, serves=False), tls_ends.in_c(far)] if tls else [None] * 2
            assert not tls or tls_ends.met(*secured) == [None, None]
            link, pool = Link(near, secured[0]), Pool(NOWHERE, "", None)
            pool._links.add(link)
            pool.give_back(link)
            circuit = Circuit(f"server {index}", lambda: NOWHERE, NOWHERE, patience=0.0)
            circuit._connection._pools.append(pool)
            self._circuits.append(circuit)
            self._pools.append(pool)
            self.servers.append(Server(far, secured[1]))
        self._noting = threading.Lock()
        self.caller = pb.PushIdentity(worker=3, incarnation=1)
        self.forget()

    def forget(self):
        """As one that has called nobody."""
        count = len(self._circuits)
        self.routing = Routing.even(count)
        self._known_versions = [0] * count
        self._acknowledged = [pb.LastPush()] * count
        self._sent = [None] * count
        self.version = 0
        self.dense = DenseValues()
        for each in self.servers:
            each.noted = []

    @property
    def noted(self):
        """What each server was sent."""
        return [each.noted for each in self.servers]

    @property
    def idle(self):
        """How many connections to each server are idle."""
        return [len(each._idle) for each in self._pools]

    def close(self):
        super().close()
        for each in self.servers:
            each.join(60)


def whole(frame):
    """An answer."""
    return prefix(ANSWER, len(frame)) + frame


def one_by_one():
    """A context in which calls to all servers are made by Python, one by one."""
    return mock.patch.object(FannedOut, "run", partialmethod(FannedOut.run, one_by_one=True))


def same_bytes(first, second):
    """True if arrays are alike, NaN and all."""
    return [(each.shape, each.tobytes()) for each in first] == [
        (each.shape, each.tobytes()) for each in second
    ]


def owners(slots):
    """A routing table's owners: those of `slots`, again and again."""
    return np.resize(np.array(slots, np.uint16), 1 << 14)
