"""The requests of a push: what goes to which server.

Owns the layout of the call on the worker's side: of one server as a frame, and of all of them for
native/fan_out, byte for byte the same. Sending them is pushing.py's, pulls are pull_requests.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import fan_out as native
from shoal.native import ids as native_ids
from shoal.native import values
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing, slice_of, slice_offsets
from shoal.proto.wire import frames
from shoal.worker.servers.fan_out import fan_out
from shoal.worker.servers.ids import slice_of_server

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

Tables = Mapping[int, tuple[Int64, Float32]]
"""Position of a table -> ids int64 [n], and what belongs to them, [n, dim]."""

_FIELDS = {each.name: each.number for each in pb.PushRequest.DESCRIPTOR.fields}
_TOLD = {each.name: each.number for each in pb.PushReply.DESCRIPTOR.fields}


@dataclass(frozen=True)
class Parts:
    """Ids of tables and what belongs to them, a server's after another's.

    tables: their positions. distinct: ids, each for one or more tables, int64 [n], and where those
    of each server begin, int64 [servers + 1]. ids_of: of each table, which of these are its own.
    values: of each table, [n, dim].
    """

    tables: list[int]
    distinct: list[tuple[Int64, Int64]]
    ids_of: list[int]
    values: list[Float32]

    def of(self, server: int) -> dict[int, tuple[Int64, Float32]]:
        """The part of a server, by table. Tables that share ids have one object."""
        ids = [ids[slice_of_server(offsets, server)] for ids, offsets in self.distinct]
        return {
            table: (ids[place], values[slice_of_server(self.distinct[place][1], server)])
            for table, place, values in zip(self.tables, self.ids_of, self.values, strict=True)
        }

    def of_all(self, servers: Sequence[int]) -> dict[int, tuple[Int64, Float32]]:
        """The parts of several servers together, by table."""
        places = [
            np.concatenate([np.arange(offsets[each], offsets[each + 1]) for each in servers])
            for _, offsets in self.distinct
        ]
        ids = [own[place] for (own, _), place in zip(self.distinct, places, strict=True)]
        return {
            table: (ids[place], values[places[place]])
            for table, place, values in zip(self.tables, self.ids_of, self.values, strict=True)
        }

    def some(self, server: int) -> bool:
        """True if there are ids of a server."""
        return any(offsets[server] < offsets[server + 1] for _, offsets in self.distinct)


def split_by_owner(tables: Tables, routing: Routing) -> Parts:
    """Group what belongs to ids by the servers that own them."""
    distinct: list[tuple[Int64, Int64]] = []
    orders: list[Int64 | None] = []
    ids_of: list[int] = []
    grouped: list[Float32] = []
    given: list[Int64] = []
    for ids, own in tables.values():
        place = next((k for k, one in enumerate(given) if one is ids), None)
        if place is None:
            place = len(given)
            given.append(ids)
            order, offsets = native_ids.partition(ids, routing.owners, routing.servers)
            # Ids of a pull are grouped by server already: they stay where they are.
            sorted_already = bool((order[1:] > order[:-1]).all())
            distinct.append((ids if sorted_already else ids[order], offsets))
            orders.append(None if sorted_already else order)
        order_of = orders[place]
        grouped.append(own if order_of is None else own[order_of])
        ids_of.append(place)
    return Parts(list(tables), distinct, ids_of, grouped)


@dataclass(frozen=True)
class PushPlan:
    """A push to all servers.

    common: the fields that all servers share, also of `parts`. dense: gradient of the flat
    trainable vector and change of the flat non-trainable one; the first `slices` servers have
    slices of them. has_dense: int64 [servers], 1 for those that get theirs. versions, times,
    own_pushes: of each server, as PushRequest's. value_types: of each table of `parts`, how its
    gradients travel.
    """

    parts: Parts
    common: pb.PushRequest
    dense: tuple[Float32, Float32]
    slices: int
    has_dense: Int64
    versions: Int64
    times: npt.NDArray[np.float64]
    own_pushes: Int64
    value_types: Sequence[pb.DataType]

    def frame(self, server: int) -> frames.Pieces:
        """The request to one server.

        Sent from where the arrays lie, which may not change until it is answered; copied only where
        they are to be rounded. As float16 they are scaled by a power of two, which the header says,
        so that none vanishes.
        """
        header = pb.PushRequest()
        header.CopyFrom(self.common)
        header.has_dense = bool(self.has_dense[server])
        header.pulled_version = int(self.versions[server])
        header.pulled_time = float(self.times[server])
        header.own_pushes = int(self.own_pushes[server])
        gradients = [own for _, own in self.parts.of(server).values()]
        dtypes = [frames.DTYPES[each] for each in self.value_types]
        scales = [
            values.scale_of(gradient, dtype)
            for gradient, dtype in zip(gradients, dtypes, strict=True)
        ]
        if any(scale != 1.0 for scale in scales):
            header.scales.extend(scales)
        arrays: list[npt.NDArray[Any]] = [
            ids[slice_of_server(offsets, server)] for ids, offsets in self.parts.distinct
        ]
        for gradient, scale, dtype in zip(gradients, scales, dtypes, strict=True):
            scaled = gradient if scale == 1.0 else gradient * np.float32(1.0 / scale)
            arrays.append(values.encoded(scaled, values.NAMES[dtype]))
        if header.has_dense:
            arrays += [each[slice_of(each.size, server, self.slices)] for each in self.dense]
        return frames.pieces(header, arrays)

    def fan_out(self) -> native.FanOut:
        """The requests to all servers."""
        servers = self.has_dense.size
        made = fan_out(servers, methods.PUSH)
        offsets_of = [self.parts.distinct[place][1] for place in self.parts.ids_of]
        gradients: list[npt.NDArray[Any]] = []
        scales: list[Float32] = []
        for own, offsets, travels in zip(
            self.parts.values, offsets_of, self.value_types, strict=True
        ):
            sent, scale = np.ascontiguousarray(own), np.ones(servers, np.float32)
            if travels != pb.FLOAT32:
                sent, scale = native.rounded(sent, offsets, travels)
            gradients.append(sent)
            scales.append(scale)
        if scales:
            made.scales(_FIELDS["scales"], np.stack(scales, axis=1))
        made.integers(_FIELDS["has_dense"], self.has_dense)
        made.integers(_FIELDS["pulled_version"], self.versions)
        made.reals(_FIELDS["pulled_time"], self.times)
        made.integers(_FIELDS["own_pushes"], self.own_pushes)
        made.specs(_FIELDS["arrays"])
        made.shared(self.common.SerializeToString())
        for ids, offsets in self.parts.distinct:
            made.send(np.ascontiguousarray(ids), offsets, pb.INT64)
        for sent, offsets, travels in zip(gradients, offsets_of, self.value_types, strict=True):
            made.send(sent, offsets, travels)
        for vector in self.dense:
            offsets = slice_offsets(vector.size, self.slices, servers)
            made.send(np.ascontiguousarray(vector), offsets, pb.FLOAT32, self.has_dense)
        made.answers(
            fields=_TOLD["arrays"],
            specs=_TOLD["arrays"],
            flags=[_TOLD["applied"]],
        )
        return made


def told(made: native.FanOut) -> tuple[list[int], int]:
    """The version of each server by its PushReply, 0 without one, and the highest staleness."""
    versions: list[int] = made.numbers[:, _TOLD["version"]].tolist()
    return versions, int(made.numbers[:, _TOLD["staleness"]].max())
