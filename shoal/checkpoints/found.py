"""What a checkpoint or an export has of one id of a table, for `shoal explain`.

Of a checkpoint only the pages are read that may have the id. An export has values alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from shoal.base.words import near
from shoal.checkpoints import arrow
from shoal.checkpoints.contents import counting_pages, page_rows, removed_pages, table_pages
from shoal.checkpoints.folders import Checkpoint
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
    for page in table_pages(checkpoint, server, position, only):
        rows = page_rows(checkpoint, page)
        if rows is None or not (at := np.flatnonzero(rows["id"] == key)).size:
            continue
        row = {name: column[at[0]] for name, column in rows.items()}
        found.state = pb.FoundId.ROW
        found.norm = float(np.linalg.norm(row["values"]))
        found.last_step, found.uses = int(row["version"]), int(row["uses"])
        for name, column in row.items():
            if name.startswith(arrow.SLOT):
                slot_name = name.removeprefix(arrow.SLOT)
                found.slots.add(slot=slot_name, norm=float(np.linalg.norm(column)))
    for page in counting_pages(checkpoint, server, position, only):
        rows = page_rows(checkpoint, page)
        if rows is not None and (at := np.flatnonzero(rows["id"] == key)).size:
            found.state = pb.FoundId.COUNTED
            found.last_step = int(rows["version"][at[0]])
            found.uses = int(rows["uses"][at[0]])
    for page in removed_pages(checkpoint, server, position):
        rows = page_rows(checkpoint, page)
        if rows is not None and (at := np.flatnonzero(rows["id"] == key)).size:
            last = at[-1]
            found.removal.step = int(rows["step"][last])
            found.removal.event_time = int(rows["event_time"][last])
            found.removal.eviction = bool(rows["eviction"][last])
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
        hint = near(table, known) or f"; there are: {', '.join(known) or 'none'}"
        raise UserError(f"the {where} has no table {table!r}{hint}")
    return known.index(table)
