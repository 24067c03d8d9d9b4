"""Rows that move from server to server: which they are, how they travel, and their removal.

Owns what is done with them in a model: reading those of some slots, setting what came, and doing
away with what is another server's. When that is done is moving.py's; a log has the same frames and
does them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids
from shoal.native.choices import Choice
from shoal.native.rowstore import MAX_STEP, NO_PART, RowStore
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import SLOTS
from shoal.proto.wire import frames
from shoal.ps.forgetting.clock import of_other_rows
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel, row_bytes, rows_of
from shoal.ps.model.unpack import check_ids

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
"""bool [16384], one a routing slot."""

PIECE_BYTES = 4 << 20
"""Of rows in a frame, about."""

TARGETS, TARGETS_BYTES = 32, 96 << 20
"""Targets whose rows are gathered side by side, and the memory for that, at most: one of them at
least. More targets cost further scans of a table's headers."""

COLLECTED = 1 << 16
"""Ids that are looked at together for their removal."""

_ALL = Choice.older_than(MAX_STEP)


def parts_of(targets: Sequence[Flags]) -> npt.NDArray[np.uint16]:
    """The part of each slot, uint16 [16384]: the one of `targets` that has it, or none."""
    part_of = np.full(SLOTS, NO_PART, np.uint16)
    for part, slots in enumerate(targets):
        part_of[slots] = part
    return part_of


def moving(
    model: ServerModel,
    head: pb.TakeRowsRequest,
    targets: Sequence[Flags],
    since: int,
    own: int = 0,
) -> Iterator[tuple[int, int, frames.Pieces]]:
    """Frames of TakeRows with all rows of some slots that were changed at a step or later.

    head: has the epoch and the attempt. targets: the slots of each target. since: the step; 0: all
    rows. own: how many slots are this server's, for a first round to say how many rows come. Yields
    (target, rows, frame). Ids that are counted come before rows: one that gets its row meanwhile
    comes as that, too.
    """
    sizes = [int(each.sum()) for each in targets]
    for counting in (True, False):
        for position, table in enumerate(model.tables):
            room = rows_of(table, PIECE_BYTES)
            # Of a first round; ids are spread evenly over slots.
            there = len(table) if own and not (counting or since) else 0
            some = min(TARGETS, max(1, TARGETS_BYTES // (room * row_bytes(table))))
            for first in range(0, len(targets), some):
                group = targets[first : first + some]
                pieces = table.export_of(
                    parts_of(group), len(group), since, room, counting=counting
                )
                for part, piece in pieces:
                    header = pb.TakeRowsRequest(
                        table=position,
                        counting=counting,
                        step=model.step,
                        expected=there * sizes[first + part] // max(1, own),
                    )
                    header.MergeFrom(head)
                    columns = _columns(table, piece, counting)
                    yield first + part, len(piece[0]), frames.pieces(header, columns)


def _columns(table: RowStore, piece: Sequence[Any], counting: bool) -> list[Array]:
    if counting:
        ids, steps, uses = piece
        return [ids, steps, uses.view(np.int32)]
    ids, values, slots, steps, uses = piece
    return [ids, values, *(slots[name] for name in table.slot_names), steps, uses.view(np.int32)]


def rows_in(
    model: ServerModel, frame: bytes | memoryview, slots: Flags | None = None
) -> tuple[pb.TakeRowsRequest, list[Array]]:
    """The rows in a frame of TakeRows, of slots among `slots`; None: of any.

    Raises WireError(BAD_REQUEST) if they are none of this model, or of other slots.
    """
    header, arrays = frames.decode(frame, pb.TakeRowsRequest)
    if header.table >= len(model.tables):
        raise WireError(pb.BAD_REQUEST, f"there is no table {header.table}")
    table = model.tables[header.table]
    n = len(arrays[0]) if arrays else 0
    rows = [(np.float32, (n, table.dim))]
    rows += [(np.float32, (n, table.slot_width))] * len(table.slot_names)
    wanted = [(np.int64, (n,)), *([] if header.counting else rows)]
    wanted += [(np.int64, (n,)), (np.int32, (n,))]
    found = [(each.dtype.type, each.shape) for each in arrays]
    if found != wanted:
        raise WireError(pb.BAD_REQUEST, f"rows of table {header.table}: {found} for {wanted}")
    check_ids(arrays[0])
    if slots is not None and not slots[native_ids.slot_of(arrays[0])].all():
        raise WireError(pb.BAD_REQUEST, f"rows of table {header.table} of slots that do not move")
    return header, arrays


def take(
    model: ServerModel, header: pb.TakeRowsRequest, arrays: Sequence[Array], step: int
) -> None:
    """Set rows that came. step: the last one here, with which the sender's `header.step` stands.

    Servers count steps of their own: what was used so many steps ago there, was so many ago here.
    """
    table = model.tables[header.table]
    ids, *columns, steps, uses = arrays
    versions = np.clip(steps + (step - header.step), 0, step)
    counts = uses.view(np.uint32)
    if header.counting:
        table.assign_counting(ids, versions, counts)
        return
    if len(table) < header.expected // 4:
        # An index that grows step by step moves its entries again and again: fifteen times the
        # processor time. One that is large already would be held up for the whole of it at once.
        table.reserve(len(table) + header.expected)
    values, *slots = columns
    named = dict(zip(table.slot_names, slots, strict=True))
    table.assign(ids, values, versions=versions, use_counts=counts, slots=named)


def join(model: ServerModel, pushes: PushRegister, request: pb.JoinRequest) -> None:
    """Bring a new server's model to the state of the others, with the pushes that they have."""
    senders = {
        each.identity.worker: (each.identity.incarnation, each.identity.sequence)
        for each in request.has
    }
    model.moments.restore(request.version, request.step, senders)
    pushes.join(request.has)
    if model.lifecycle is not None and request.clock:
        model.lifecycle.clock.restore(of_other_rows(json.loads(request.clock)))


def remove(model: ServerModel, slots: Flags) -> int:
    """Remove rows and counted ids of these slots; returns how many there were.

    Others may be changed meanwhile. Raises MemoryError.
    """
    removed = 0
    for table in model.tables:
        cursor: int | None = 0
        while cursor is not None:
            ids, cursor = table.collect(_ALL, _ALL, cursor, COLLECTED)
            gone = ids[slots[native_ids.slot_of(ids)]]
            if gone.size:
                removed += table.remove(gone)
    return removed
