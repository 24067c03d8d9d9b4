"""The frames of pulls and pushes: what goes to which server, and rows from the answers.

Owns the layout of both hot calls on the worker's side. Sending them is pulling.py's and
pushing.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids
from shoal.native import values
from shoal.native.arrays import aligned_empty
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.worker.servers.ids import TableIds

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

VALUE_TYPES = {"float32": pb.FLOAT32, "bfloat16": pb.BFLOAT16, "float16": pb.FLOAT16}
"""By the value of --wire-dtype."""


@dataclass(frozen=True)
class Answer:
    """The answer of a server to a pull. dense: its newer slices, if there are any."""

    reply: pb.PullReply
    dense: tuple[Float32, Float32] | None


class PullPlan:
    """A pull of `ids`, one TableIds a table: what is asked of each server, and where rows go.

    rows: of each table, in the order of its ids, float32 [unique, dim]; whole once the answers of
    all servers were taken.
    """

    def __init__(
        self,
        ids: Sequence[TableIds],
        dims: Sequence[int],
        value_type: pb.DataType = pb.FLOAT32,
        *,
        whole_updates: bool = False,
    ) -> None:
        """dims: length of a row of each table. value_type: how the rows travel.

        whole_updates: as PullRequest's.
        """
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
        self._order = [table for tables in self._tables for table in tables]
        # Aligned, so that TensorFlow takes them as they are.
        self.rows: list[Float32] = [
            aligned_empty((each.unique.size, dim), np.float32)
            for each, dim in zip(ids, dims, strict=True)
        ]

    def requests(
        self,
        epoch: int,
        dense_versions: Sequence[int],
        training: bool,
        caller: pb.PushIdentity | None = None,
    ) -> list[frames.Pieces]:
        """The frame for each server. dense_versions: as the caller has them, one a server."""
        header = pb.PullRequest(
            caller=caller,
            routing_epoch=epoch,
            tables=self._order,
            ids_of=[place for place, tables in enumerate(self._tables) for _ in tables],
            training=training,
            value_type=self._value_type,
            whole_updates=self._whole_updates,
        )
        made = []
        for server, version in enumerate(dense_versions):
            header.dense_version = version
            arrays = [each.unique[_own(each, server)] for each in self._distinct]
            made.append(frames.pieces(header, arrays))
        return made

    def take(self, server: int, body: frames.Body) -> Answer:
        """Receive a server's answer, the rows straight into their places.

        Raises WireError(BAD_REQUEST) if it is none to this pull.
        """
        dtype = frames.DTYPES[self._value_type]
        own = [self.rows[table][_own(self._ids[table], server)] for table in self._order]

        def place(header: pb.PullReply, found: list[Any]) -> list[npt.NDArray[Any]]:
            wanted = [(dtype, rows.shape) for rows in own]
            dense = found[len(own) :]
            if found[: len(own)] != wanted or len(dense) != 2 * header.has_dense:
                raise WireError(pb.BAD_REQUEST, f"{found} came of a pull of {wanted}")
            exact = dtype == np.float32
            return [*(own if exact else [np.empty(rows.shape, dtype) for rows in own])] + [
                np.empty(shape, kind) for kind, shape in dense
            ]

        reply, arrays = frames.receive(body, pb.PullReply, place)
        if dtype != np.float32:
            for rows, target in zip(arrays, own, strict=False):
                values.decode(rows, target)
        newer = (arrays[-2], arrays[-1]) if reply.has_dense else None
        return Answer(reply, newer)


def _own(ids: TableIds, server: int) -> slice:
    """The slice of `ids.unique` with the ids of one server."""
    return slice(int(ids.offsets[server]), int(ids.offsets[server + 1]))


def push_frame(
    header: pb.PushRequest,
    tables: dict[int, tuple[Int64, Float32]],
    dense: tuple[Float32, Float32] | None,
    value_type: pb.DataType = pb.FLOAT32,
) -> frames.Pieces:
    """The frame of a push to one server.

    Sent from where the arrays lie, which may not change until it is answered; copied only where
    they are to be rounded. As float16 they are scaled by a power of two, which the header says, so
    that none vanishes.

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
    arrays: list[npt.NDArray[Any]] = [*distinct]
    for gradient, scale in zip(gradients, scales, strict=True):
        scaled = gradient if scale == 1.0 else gradient * np.float32(1.0 / scale)
        if dtype == np.float32:
            arrays.append(scaled)
        else:
            rounded = np.empty(scaled.shape, dtype)
            values.encode(scaled, rounded)
            arrays.append(rounded)
    return frames.pieces(header, [*arrays, *(dense or ())])


def split_by_owner(
    tables: dict[int, tuple[Int64, Float32]], routing: Routing
) -> tuple[list[dict[int, tuple[Int64, Float32]]], dict[int, Int64]]:
    """The parts of each server, and the owner of each id of each table.

    tables: position -> (ids, what belongs to them), as the parts.
    """
    servers = routing.servers
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
    """The positions of each server's ids; `owner` gives the server of each id."""
    # Ids of a pull are grouped by server already: then each part is a view.
    if (np.diff(owner) >= 0).all():
        ends = np.searchsorted(owner, np.arange(servers + 1))
        return [slice(ends[server], ends[server + 1]) for server in range(servers)]
    return [np.flatnonzero(owner == server) for server in range(servers)]
