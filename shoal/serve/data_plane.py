"""Rows over the data plane: lookups that are answered in C, for programs that ask often.

Owns the port, whose server changes with the model's tables, and both ends of a lookup. A request is
a pull as workers send it to servers (proto/wire/frames.py); nothing else is answered.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from shoal.base.words import near
from shoal.deltas.following import Follower
from shoal.deltas.rows import Rows
from shoal.errors import Error, UserError
from shoal.metrics.durations import BOUNDS
from shoal.native import values
from shoal.native.answering import Answerer
from shoal.native.moments import Moments
from shoal.native.strings import string_ids
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane import hello, message
from shoal.proto.plane.direct import WithDirect
from shoal.proto.plane.link import BrokenError, Link
from shoal.proto.plane.server import ArrayServer
from shoal.proto.wire import frames

EPOCH = 1
"""Of the routing table by which requests are made: all rows are here."""

NO_DENSE = -2
"""The version of the dense values of a request that wants none."""

DIRECT_IDS = 4_000
"""Of a request: one of at most 32 KiB is answered in C."""

GRACE_SECONDS = 1.0
"""For requests under way when a server ends."""

SECONDS = 30.0
"""For an answer."""


class DataPlane:
    """The port of a follower's rows, from `start` to `close`. port: its number."""

    def __init__(self, follower: Follower, listener: socket.socket) -> None:
        """listener: bound; it is closed at the end."""
        self._follower, self._listener = follower, listener
        self._address: tuple[str, int] = listener.getsockname()[:2]
        self.port = self._address[1]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rows", daemon=True)

    def start(self) -> None:
        """Answer as soon as there are rows; others take their place with another model."""
        self._thread.start()

    def close(self) -> None:
        """End it; requests under way have a second."""
        self._ends.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        served: Rows | None = None
        server: ArrayServer | None = None
        number = 1
        while not self._ends.is_set():
            if not self._follower.wait(number, 0.2) or (rows := self._follower.rows) is served:
                number = self._follower.number + 1
                continue
            if server is not None:
                server.stop(GRACE_SECONDS)
                self._listener = listening(*self._address)
            server, served = server_of(rows, self._follower, self._listener), rows
            server.start()
        if server is not None:
            server.stop(GRACE_SECONDS)


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def server_of(rows: Rows, follower: Follower, listener: socket.socket) -> ArrayServer:
    """A server of pulls of these rows, which is not started."""
    tables = [*rows.tables.values()]
    stores = [each.store for each in tables]
    answerer = Answerer(methods.PULL.kind, methods.PUSH.kind, BOUNDS)
    # Ids without a row read as Table.lookup says.
    answerer.serve_model(
        [(each.store, bool(each.vocabulary), False) for each in tables],
        Moments(stores),
        bounds=[each.vocabulary for each in tables],
        reads=[each.reads for each in tables],
    )
    answerer.take_pushes(False)
    answerer.route(EPOCH, None)
    answerer.open()

    def answer(frame: bytes | memoryview) -> frames.Pieces:
        """Answer what C leaves: large requests."""
        request, arrays = frames.decode(frame, pb.PullRequest)
        found = []
        for position, place in zip(request.tables, request.ids_of, strict=True):
            if position >= len(tables) or place >= len(arrays):
                raise WireError(pb.BAD_REQUEST, f"there is no table {position}, or no ids {place}")
            table = tables[position]
            found.append(values.encoded(table.lookup(arrays[place]), table.store.value_dtype))
        return frames.pieces(pb.PullReply(version=follower.number), found)

    handlers = {methods.PULL: WithDirect(answer, answerer, methods.PULL.kind)}
    return ArrayServer(handlers, listener, "", None, lambda *_: None)


class LookupsError(Error):
    """A server of rows that cannot be asked; the text says why."""


class Lookups:
    """Rows of a `shoal serve --rows`, by name of table. For one thread at a time.

    tables: the dims by name.
    """

    def __init__(self, url: str) -> None:
        """url: of the server, as in http://host:8501. Raises LookupsError."""
        self._url = url.rstrip("/")
        self._host = urlsplit(url).hostname or ""
        self._link: Link | None = None
        self._connect()

    def _connect(self) -> None:
        self.close()
        try:
            with urllib.request.urlopen(f"{self._url}/v1/tables", timeout=SECONDS) as answer:
                told = json.load(answer)
            if not told["rows_port"]:
                raise LookupsError(f"{self._url} has no port for rows: start it with --rows PORT")
            self.tables = {each["name"]: each["dim"] for each in told["tables"]}
            self._link = Link(socket.create_connection((self._host, told["rows_port"]), SECONDS))
            hello.call(self._link, "", None, SECONDS)
        except (OSError, ValueError, KeyError, WireError, BrokenError) as error:
            self.close()
            raise LookupsError(f"{self._url}: {error}") from error

    def lookup(self, table: str, ids: Any) -> npt.NDArray[np.float32]:
        """The rows of ids, float32 [n, dim]. ids: integers or strings [n].

        Raises UserError for a table that is not there, LookupsError if the server is away.
        """
        wanted = np.asarray(ids)
        wanted = string_ids(wanted) if wanted.dtype.kind in "OSU" else wanted.astype(np.int64)
        firsts = range(0, max(wanted.size, 1), DIRECT_IDS)
        return np.concatenate(
            [self._asked(table, wanted[first : first + DIRECT_IDS]) for first in firsts]
        )

    def _asked(self, table: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        for again in (True, False):
            if table not in self.tables:
                known = f"{near(table, self.tables)}; there are {', '.join(self.tables)}"
                raise UserError(f"there is no table {table!r}{known}")
            request = pb.PullRequest(
                dense_version=NO_DENSE,
                routing_epoch=EPOCH,
                tables=[[*self.tables].index(table)],
                ids_of=[0],
            )
            try:
                return self._exchanged(frames.encode(request, [ids]))
            except (OSError, BrokenError) as error:
                if not again:
                    raise LookupsError(f"{self._url}: {error}") from error
                self._connect()  # it was started anew, or has another model
        raise AssertionError("not reached")

    def _exchanged(self, frame: bytes) -> npt.NDArray[np.float32]:
        link = self._link
        if link is None:
            raise BrokenError("the connection is closed")
        packed = [message.prefix(methods.PULL.kind, len(frame)), frame]
        link.send(packed, message.PREFIX_BYTES + len(frame), SECONDS)
        until = time.monotonic() + SECONDS
        kind, size = link.next_prefix(until)
        body = memoryview(bytearray(size))
        link.into(body, until)
        if kind != message.ANSWER:
            raise LookupsError(f"{self._url}: {pb.ErrorDetail.FromString(bytes(body)).message}")
        _, (rows,) = frames.decode(body, pb.PullReply)
        return values.decode(rows)

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.close()
            self._link = None
