"""The frames of pulls and pushes: what goes to which server, and rows from the answers.

Owns the layout of both hot calls on the worker's side, and how a pull is split so that no
answer is larger than a limit. Sending them is pulling.py's and pushing.py's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids
from shoal.native import values
from shoal.proto import frames
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.routing import Routing
from shoal.worker.servers.ids import TableIds

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

PULLED_BYTES = 4 << 20
"""Most bytes of rows in one answer. A larger pull is split: the server gathers one part
while gRPC copies another. See docs/notes/server.md."""

VALUE_TYPES = {"float32": pb.FLOAT32, "bfloat16": pb.BFLOAT16, "float16": pb.FLOAT16}
"""By the value of --wire-dtype."""


@dataclass
class PullPart:
    """One call of a pull: some rows of some tables of one server.

    slices: by position in the list of distinct TableIds, the rows asked for.
    tables: the tables whose rows come, in the order of the answer's arrays.
    """

    server: int
    first: bool
    slices: dict[int, slice] = field(default_factory=dict)
    tables: list[int] = field(default_factory=list)


class PullPlan:
    """How a pull of `ids`, one TableIds a table, is cut into calls.

    dims: length of a row of each table. value_type: how the rows travel. whole_updates: as
    PullRequest's.
    """

    def __init__(
        self,
        ids: Sequence[TableIds],
        dims: Sequence[int],
        servers: int,
        value_type: pb.DataType = pb.FLOAT32,
        limit: int = PULLED_BYTES,
        *,
        whole_updates: bool = False,
    ) -> None:
        self._ids = ids
        self._whole_updates = whole_updates
        self._dims = dims
        self._value_type = value_type
        self._distinct: list[TableIds] = []
        self._tables: list[list[int]] = []
        for table, each in enumerate(ids):
            known = next((i for i, one in enumerate(self._distinct) if one is each), None)
            if known is None:
                self._distinct.append(each)
                self._tables.append([table])
            else:
                self._tables[known].append(table)
        width = frames.DTYPES[value_type].itemsize
        self._row_bytes = [sum(dims[t] for t in tables) * width for tables in self._tables]
        # The first of each server, then the second of each: so all servers work at a time.
        cut = [self._cut(server, limit) for server in range(servers)]
        self.parts = [part for each in itertools.zip_longest(*cut) for part in each if part]
        self._targets: dict[int, Float32] = {}

    def _cut(self, server: int, limit: int) -> list[PullPart]:
        """The calls to one server; one at least, which brings the dense slices."""
        part = PullPart(server, first=True)
        parts, room = [part], limit
        for position, each in enumerate(self._distinct):
            start, end = int(each.offsets[server]), int(each.offsets[server + 1])
            row = self._row_bytes[position]
            while True:
                if part.slices and room < min(end - start, 1) * row:
                    part = PullPart(server, first=False)
                    parts.append(part)
                    room = limit
                taken = min(end - start, max(1, room // row))
                part.slices[position] = slice(start, start + taken)
                part.tables += self._tables[position]
                start += taken
                room -= taken * row
                if start == end:
                    break
        return parts

    def request(
        self,
        part: PullPart,
        epoch: int,
        dense_version: int,
        training: bool,
        caller: pb.PushIdentity | None = None,
    ) -> bytes:
        """The frame of one call; dense_version is asked for by a server's first one only."""
        order = {position: i for i, position in enumerate(part.slices)}
        header = pb.PullRequest(
            caller=caller,
            routing_epoch=epoch,
            tables=part.tables,
            ids_of=[order[p] for p in part.slices for _ in self._tables[p]],
            dense_version=dense_version if part.first else -2,
            training=training,
            value_type=self._value_type,
            whole_updates=self._whole_updates,
        )
        arrays = [self._distinct[position].unique[some] for position, some in part.slices.items()]
        return frames.encode(header, arrays)

    def take(self, part: PullPart, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Put the rows of an answer in their places."""
        places = [some for p, some in part.slices.items() for _ in self._tables[p]]
        for table, some, rows in zip(part.tables, places, arrays, strict=False):
            count = self._ids[table].unique.size
            if rows.shape != (some.stop - some.start, self._dims[table]):
                raise WireError(pb.BAD_REQUEST, f"the server gave rows of shape {rows.shape}")
            if some.stop - some.start == count:
                # All of the table's in one answer: not even a copy.
                self._targets[table] = values.decode(rows)
            elif some.stop > some.start:
                target = self._targets.get(table)
                if target is None:
                    target = np.empty((count, self._dims[table]), np.float32)
                    self._targets[table] = target
                values.decode(rows, target[some])

    def rows(self) -> list[Float32]:
        """The rows of each table, in the order of its ids, once every answer was taken."""
        return [self._targets[table] for table in range(len(self._ids))]


def push_frame(
    header: pb.PushRequest,
    tables: dict[int, tuple[Int64, Float32]],
    dense: tuple[Float32, Float32] | None,
    value_type: pb.DataType = pb.FLOAT32,
) -> bytes:
    """The frame of a push to one server. Gradients are copied once, rounded if they are to be.

    As float16 they are scaled by a power of two, which the header says, so that none vanishes.

    tables: position -> (ids, gradients); ids that are one object travel once.
    """
    distinct: list[Int64] = []
    for table, (ids, _) in tables.items():
        known = next((i for i, one in enumerate(distinct) if one is ids), None)
        if known is None:
            known = len(distinct)
            distinct.append(ids)
        header.tables.append(table)
        header.ids_of.append(known)
    gradients = [gradient for _, gradient in tables.values()]
    header.has_dense = dense is not None
    dtype = frames.DTYPES[value_type]
    scales = [values.scale_of(gradient, dtype) for gradient in gradients]
    if any(scale != 1.0 for scale in scales):
        header.scales.extend(scales)
    float32 = frames.DTYPES[pb.FLOAT32]
    writer = frames.FrameWriter(
        header,
        [(frames.DTYPES[pb.INT64], ids.shape) for ids in distinct]
        + [(dtype, gradient.shape) for gradient in gradients]
        + [(float32, part.shape) for part in dense or ()],
    )
    targets = iter(writer.arrays)
    for ids in distinct:
        np.copyto(next(targets), ids)
    for gradient, scale in zip(gradients, scales, strict=True):
        scaled = gradient if scale == 1.0 else gradient * np.float32(1.0 / scale)
        values.encode(scaled, next(targets))
    for part in dense or ():
        np.copyto(next(targets), part)
    return writer.frame


def split_by_owner(
    tables: dict[int, tuple[Int64, Float32]], routing: Routing, servers: int
) -> tuple[list[dict[int, tuple[Int64, Float32]]], dict[int, Int64]]:
    """The parts of each server, and the owner of each id of each table.

    tables: position -> (ids, what belongs to them), as the parts.
    """
    if servers == 1:
        return [tables], {table: np.zeros(ids.size, np.int64) for table, (ids, _) in tables.items()}
    parts: list[dict[int, tuple[Int64, Float32]]] = [{} for _ in range(servers)]
    owners: dict[int, Int64] = {}
    places: list[slice | Int64] = []
    cut: list[Int64] = []
    last: Int64 | None = None
    for table, (ids, gradients) in tables.items():
        if ids is not last:  # tables that share ids share their parts, too
            last = ids
            owner = routing.owners[native_ids.slot_of(ids)].astype(np.int64)
            places = _places(owner, servers)
            cut = [ids[place] for place in places]
        owners[table] = owner
        for server, place in enumerate(places):
            parts[server][table] = cut[server], gradients[place]
    return parts, owners


def _places(owner: Int64, servers: int) -> list[slice | Int64]:
    """Where the ids of each server are, of which `owner` says whose they are."""
    # Ids of a pull are grouped by server already: then each part is a view.
    if (np.diff(owner) >= 0).all():
        ends = np.searchsorted(owner, np.arange(servers + 1))
        return [slice(ends[server], ends[server + 1]) for server in range(servers)]
    return [np.flatnonzero(owner == server) for server in range(servers)]
