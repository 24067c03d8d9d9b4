"""The requests of a pull: what is asked of which server, and rows from the answers.

Owns the layout of the call on the worker's side: of one server as a frame, and of all of them for
native/fan_out, byte for byte the same. Sending them is fan_out.py's, pushes are push_requests.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import values
from shoal.native.arrays import aligned_empty
from shoal.native.fan_out import FanOut
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing, slice_offsets
from shoal.proto.wire import frames
from shoal.worker.servers.fan_out import fan_out
from shoal.worker.servers.ids import TableIds, slice_of_server

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

VALUE_TYPES = {
    "auto": pb.DATA_TYPE_UNSPECIFIED,
    "float32": pb.FLOAT32,
    "bfloat16": pb.BFLOAT16,
    "float16": pb.FLOAT16,
}
"""By the value of --wire-dtype, or of TableSpec.value_dtype."""

_FIELDS = {each.name: each.number for each in pb.PullRequest.DESCRIPTOR.fields}
_TOLD = {each.name: each.number for each in pb.PullReply.DESCRIPTOR.fields}


@dataclass(frozen=True)
class Answer:
    """The answer of a server to a pull. dense: its newer slices, if there are any."""

    reply: pb.PullReply
    dense: tuple[Float32, Float32] | None


@dataclass(frozen=True)
class Told:
    """The fields of PullReplies, each a list by server."""

    versions: list[int]
    times: list[float]
    applied: list[int]
    updates: list[int]
    has_dense: list[int]

    @classmethod
    def of(cls, made: FanOut | None, servers: int) -> Told:
        """The answers of all servers that have answered, if any have; the others' are 0."""
        if made is None:
            return cls([0] * servers, [0.0] * servers, [0] * servers, [0] * servers, [0] * servers)
        return cls(
            made.numbers[:, _TOLD["version"]].tolist(),
            made.numbers[:, _TOLD["time"]].view(np.float64).tolist(),
            made.numbers[:, _TOLD["applied"]].tolist(),
            made.numbers[:, _TOLD["update"]].tolist(),
            made.numbers[:, _TOLD["has_dense"]].tolist(),
        )

    def note(self, server: int, reply: pb.PullReply) -> None:
        """A server's answer that came as a message."""
        self.versions[server], self.times[server] = reply.version, reply.time
        self.applied[server], self.updates[server] = reply.applied, reply.update

    def complete(self, routing: Routing) -> None:
        """Give absent servers what the one with the newest version says.

        Without the time: clocks of servers are their own.
        """
        if routing.absent:
            newest = max(routing.present, key=self.versions.__getitem__)
            for server in routing.absent:
                self.versions[server] = self.versions[newest]
                self.applied[server] = self.applied[newest]
                self.updates[server] = self.updates[newest]


@dataclass(frozen=True)
class PullHead:
    """The fields of a pull's requests. dense_versions: as the caller has them, one a server.

    after: as PullRequest's.
    """

    epoch: int
    dense_versions: Sequence[int]
    training: bool
    caller: pb.PushIdentity | None = None
    after: int = 0


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
        held: Sequence[pb.DataType] = (),
        *,
        whole_updates: bool = False,
    ) -> None:
        """dims: length of a row of each table. value_type, whole_updates: as PullRequest's.

        held: of each table, the type in which servers hold its rows, where value_type is
        unspecified.
        """
        self._ids = ids
        self._whole_updates = whole_updates
        self._dims = dims
        self._value_type = value_type
        self._types = [value_type] * len(dims) if value_type else held
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

    def fan_out(self, request: PullHead, dense: tuple[Float32, Float32], slices: int) -> FanOut:
        """The requests to all servers, and the places of their answers.

        dense: where newer trainable and state vectors are to be; the first `slices` servers have
        slices of them.
        """
        servers = len(request.dense_versions)
        made = fan_out(servers, methods.PULL)
        made.integers(_FIELDS["dense_version"], np.array(request.dense_versions, np.int64))
        made.specs(_FIELDS["arrays"])
        made.shared(self._header(request).SerializeToString())
        for each in self._distinct:
            made.send(each.unique, each.offsets, pb.INT64)
        for table in self._order:
            rows, offsets, travels = self.rows[table], self._ids[table].offsets, self._types[table]
            if travels == pb.FLOAT32:
                made.want(rows, offsets, pb.FLOAT32)
            else:
                bits = np.empty(rows.shape, frames.DTYPES[travels])
                made.want(bits, offsets, travels, decoded=rows)
        for vector in dense:
            offsets = slice_offsets(vector.size, slices, servers)
            made.want(vector, offsets, pb.FLOAT32, optional=True)
        made.answers(
            fields=_TOLD["arrays"],
            specs=_TOLD["arrays"],
            reals=[_TOLD["time"]],
            flags=[_TOLD["has_dense"]],
            flag=_TOLD["has_dense"],
        )
        return made

    def frame(self, request: PullHead, server: int) -> frames.Pieces:
        """The request to one server."""
        header = self._header(request)
        header.dense_version = request.dense_versions[server]
        return frames.pieces(
            header, [each.unique[slice_of_server(each.offsets, server)] for each in self._distinct]
        )

    def _header(self, request: PullHead) -> pb.PullRequest:
        """The fields that all servers share."""
        return pb.PullRequest(
            caller=request.caller,
            routing_epoch=request.epoch,
            tables=self._order,
            ids_of=[place for place, tables in enumerate(self._tables) for _ in tables],
            training=request.training,
            value_type=self._value_type,
            whole_updates=self._whole_updates,
            after=request.after,
        )

    def take(self, server: int, body: frames.Body) -> Answer:
        """Receive a server's answer, the rows straight into their places.

        Raises WireError(BAD_REQUEST) if it is none to this pull.
        """
        own = [
            self.rows[table][slice_of_server(self._ids[table].offsets, server)]
            for table in self._order
        ]

        def place(header: pb.PullReply, found: list[Any]) -> list[npt.NDArray[Any]]:
            wanted = [
                (frames.DTYPES[self._types[table]], rows.shape)
                for table, rows in zip(self._order, own, strict=True)
            ]
            dense = found[len(own) :]
            if found[: len(own)] != wanted or len(dense) != 2 * header.has_dense:
                raise WireError(pb.BAD_REQUEST, f"{found} came of a pull of {wanted}")
            return [
                rows if dtype == np.float32 else np.empty(rows.shape, dtype)
                for (dtype, _), rows in zip(wanted, own, strict=True)
            ] + [np.empty(shape, kind) for kind, shape in dense]

        reply, arrays = frames.receive(body, pb.PullReply, place)
        for rows, target in zip(arrays, own, strict=False):
            if rows is not target:
                values.decode(rows, target)
        newer = (arrays[-2], arrays[-1]) if reply.has_dense else None
        return Answer(reply, newer)
