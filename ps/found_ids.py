"""The state of one id of a table on a server, for `shoal explain`.

Reads only, under the locks of the owners: the row store's, and the list of removals. No I/O.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shoal.base.words import near_or_all
from shoal.native import ids as native_ids
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.model.tables import ServerModel


def find_id(
    model: ServerModel, request: pb.FindIdRequest, server: int, routing: Routing
) -> pb.FoundId:
    """The id as this server has it now.

    Raises WireError(BAD_REQUEST) if there is no such table, or the id is another server's.
    """
    names = [table.name for table in model.spec.tables]
    if request.table not in names:
        hint = near_or_all(request.table, names)
        raise WireError(pb.BAD_REQUEST, f"the model has no table {request.table!r}{hint}")
    position = names.index(request.table)
    slot = int(native_ids.slot_of(np.array([request.id], np.int64))[0])
    if routing.owners[slot] != server:
        raise WireError(pb.BAD_REQUEST, f"id {request.id} is on ps-{routing.owners[slot]}")
    found = pb.FoundId(
        id=request.id,
        table=model.spec.tables[position],
        slot=slot,
        server=server,
        servers=routing.servers,
        step=model.step,
    )
    there = model.tables[position].find(request.id)
    if there is not None:
        values, slots, found.last_step, found.uses = there
        found.state = pb.FoundId.COUNTED if values is None else pb.FoundId.ROW
        if values is not None:
            found.norm = float(np.linalg.norm(values))
        for name, slot_values in slots.items():
            found.slots.add(slot=name, norm=float(np.linalg.norm(slot_values)))
    if model.lifecycle is not None:
        _add_times(found, model, position)
    return found


def _add_times(found: pb.FoundId, model: ServerModel, position: int) -> None:
    lifecycle = model.lifecycle
    assert lifecycle is not None
    removal = lifecycle.removals.find(position, found.id)
    if removal is not None:
        found.removal.step, found.removal.eviction = removal.step, removal.eviction
        found.removal.event_time = removal.event_time or 0
    now = lifecycle.clock.now
    if now is None:
        return
    found.clock = now
    line = lifecycle.clock.lines.get(position)
    if line is not None and found.state != pb.FoundId.NOTHING:
        # Pushes go on: of a list of this moment.
        found.last_time = replace(line, entries=list(line.entries)).latest(found.last_step, now)
