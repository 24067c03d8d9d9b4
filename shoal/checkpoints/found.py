"""The state of one id of a table in a checkpoint or an export, for `shoal explain`.

Of a checkpoint only the pages are read that may have the id. An export has values alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from shoal.base.words import near_or_all
from shoal.checkpoints.contents import counting_pages, removed_pages, row_in, table_pages
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats import arrow
from shoal.checkpoints.saved import Export
from shoal.errors import UserError
from shoal.native.ids import slot_of
from shoal.proto import shoal_pb2 as pb


def find_in_checkpoint(checkpoint: Checkpoint, table: str, key: int) -> pb.FoundId:
    """The id as it was when the checkpoint was taken.

    Raises UserError if there is no such table, CheckpointError for a file that is not as written.
    """
    model, routing = checkpoint.model, checkpoint.routing
    position = _position([each.name for each in model.tables], table, "checkpoint")
    slot = int(slot_of(np.array([key], np.int64))[0])
    server = int(routing.owners[slot])
    shard = checkpoint.shards[server]
    found = pb.FoundId(
        id=key,
        table=model.tables[position],
        slot=slot,
        server=server,
        servers=routing.servers,
        step=shard["step"],
    )
    only = np.zeros(routing.owners.size, bool)
    only[slot] = True
    row = row_in(checkpoint, table_pages(checkpoint, server, position, only), key)
    count = row_in(checkpoint, counting_pages(checkpoint, server, position, only), key)
    removal = row_in(checkpoint, removed_pages(checkpoint, server, position), key)
    for state, there in ((pb.FoundId.ROW, row), (pb.FoundId.COUNTED, count)):
        if there is not None:
            found.state = state
            found.last_step, found.uses = int(there["version"]), int(there["uses"])
    if row is not None:
        found.norm = float(np.linalg.norm(row["values"]))
        for name, column in row.items():
            if name.startswith(arrow.SLOT):
                slot_name = name.removeprefix(arrow.SLOT)
                found.slots.add(slot=slot_name, norm=float(np.linalg.norm(column)))
    if removal is not None:
        found.removal.step = int(removal["step"])
        found.removal.event_time = int(removal["event_time"])
        found.removal.eviction = bool(removal["eviction"])
    lifecycle = shard.get("lifecycle")
    if lifecycle is not None and (now := lifecycle["clock"]["now"]) is not None:
        found.clock = now
        for line in lifecycle["clock"]["lines"]:
            if line["table"] == position and found.state != pb.FoundId.NOTHING:
                place = bisect_right(line["entries"], found.last_step, key=lambda each: each[0])
                entries = line["entries"]
                found.last_time = entries[place][1] if place < len(entries) else now
    return found


def find_in_export(export: Export, table: str, key: int) -> pb.FoundId:
    """The id as the export has it.

    Raises UserError if there is no such table, or a file is damaged.
    """
    tables = export.manifest["tables"]
    described = tables[_position([each["name"] for each in tables], table, "export")]
    found = pb.FoundId(id=key, table=pb.TableSpec(name=table, dim=described["dim"]))
    for ids, rows in export.rows(table, described["dim"]):
        at = np.flatnonzero(ids == key)
        if at.size:
            found.state, found.norm = pb.FoundId.ROW, float(np.linalg.norm(rows[at[0]]))
            break
    return found


def _position(names: Iterable[str], table: str, where: str) -> int:
    known = list(names)
    if table not in known:
        raise UserError(f"the {where} has no table {table!r}{near_or_all(table, known)}")
    return known.index(table)
