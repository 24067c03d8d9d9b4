"""One server's shard of a checkpoint, to files; back is restoring.py's.

Owns what is in a shard: the server after exactly the pushes that it names. They are noted
and the rows fixed in one pause between pushes (`cut`), and the rows are written while later
pushes go on. The files' form is shoal.checkpoints'; when to take a checkpoint is the
master's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import folders
from shoal.checkpoints.folders import Attempt
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import FORMAT
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import SLOTS, Routing
from shoal.ps.forgetting.removals import Removal, columns_of, owned_of
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import AT_ONCE, FrozenDense, ServerModel, row_bytes, rows_of

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import (
        AppliedPush,
        JournalPosition,
        LifecycleState,
        PagedFile,
        Shard,
        ShardEntry,
    )

PIECE_BYTES = 4 << 20
"""Of rows in a page, about: what is written, and later read, checked and restored, at once."""

PARTS = 16
"""Of a shard's routing slots, whose rows are gathered apart until they fill a page. More of them
make another number of servers read less of what is not theirs, and cost a page's memory each."""

PARTS_BYTES = 96 << 20
"""For the pages of all parts, at most: where rows are wide, as many as a store gives at once take
tens of megabytes, and there are fewer parts."""

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Piece = tuple[Array | dict[str, Float32], ...]
"""Rows as a row store gives them: ids, values, optimizer slots, versions and use counts; or ids
that are counted: ids, versions and use counts."""

COUNTING_BYTES = 16
"""Of a counted id in a piece."""

REMOVED_ROOM = PIECE_BYTES // 25
"""Removed ids in a piece, about."""


@dataclass(frozen=True)
class Cut:
    """A server at one moment; its rows are fixed until `ServerModel.thaw`.

    applied: the last push of each worker. counting: of each table, ids that are counted and have
    no row. lifecycle, removed: where tables are swept, how far that is, and of each table the
    removals that no complete checkpoint has; forgotten: ids of more of these. update: with --sync,
    the last one applied.
    """

    dense: FrozenDense
    applied: list[dict[str, int]]
    counting: list[int]
    lifecycle: LifecycleState | None = None
    removed: Sequence[list[Removal]] = ()
    forgotten: Sequence[int] = ()
    update: int = 0


def cut(
    model: ServerModel,
    pushes: PushRegister,
    noted: Callable[[Cut], object] = lambda _: None,
    update: Callable[[], int] = lambda: 0,
) -> Cut:
    """Fix the server as it is, between two pushes.

    noted: called with it before the next push. update: tells the last one applied, of --sync.
    Raises WireError before the dense values are there.
    """
    with pushes.paused() as applied:
        counting = [table.counting for table in model.tables]
        frozen = model.freeze()
        made = Cut(frozen, applied, counting, update=update())
        if (lifecycle := model.lifecycle) is not None:
            positions = range(len(model.tables))
            removed = [lifecycle.removals.pending(position) for position in positions]
            forgotten = [lifecycle.removals.forgotten(position) for position in positions]
            state = lifecycle.state()
            made = replace(made, lifecycle=state, removed=removed, forgotten=forgotten)
        noted(made)
        return made


def write_shard(
    attempt: Attempt,
    server: int,
    routing: Routing,
    model: ServerModel,
    at: Cut,
    between_pieces: Callable[[], None] = lambda: None,
    journal: dict[str, Any] | None = None,
) -> ShardEntry:
    """Write the shard of a cut into an attempt's folder, and thaw the model.

    between_pieces: called between two pieces of rows; what it raises ends the writing.
    journal: how far the master's journal was, as the server has been told.

    Returns what the manifest of the whole says of it. Raises OSError if files cannot be
    written, MemoryError if rows changed meanwhile do not fit.
    """
    from shoal.checkpoints.formats import (
        arrow,
        schema,  # late: they take the start of a process a while
    )

    files: list[PagedFile] = []
    rows: list[int] = []
    prefix = schema.shard_prefix(server, attempt.nonce)
    owns = routing.owners == server
    owned = np.flatnonzero(owns)
    # Of slots that have moved since, others know what there is.
    own_removals = [owned_of(removals, owns) for removals in at.removed]
    removed = [sum(each.ids.size for each in removals) for removals in own_removals]
    removed = removed or [0] * len(model.tables)
    *names, dense, state = schema.shard_files(prefix, at.counting, removed)

    def pieces(
        snapshot: Callable[[Array, int, int], Iterator[tuple[int, Piece]]],
        count: int,
        room: int,
        columns: Callable[..., dict[str, Any]],
    ) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
        rows.append(0)
        parts = _parts_of(owned, count)
        for piece, slots in _by_slots(snapshot(parts, count, room), room, owned, parts):
            rows[-1] += len(piece[0])
            yield columns(*piece), slots
            between_pieces()

    try:
        for name, table in zip(names, model.tables, strict=False):
            room = rows_of(table, PIECE_BYTES)
            columns = partial(arrow.row_columns, value_dtype=table.value_dtype)
            count = min(PARTS, max(1, PARTS_BYTES // (room * row_bytes(table))))
            found = pieces(table.snapshot_by, count, room, columns)
            files.append(arrow.write(attempt.folder, name, found))
        room = PIECE_BYTES // COUNTING_BYTES + AT_ONCE
        counted = [table for table, n in zip(model.tables, at.counting, strict=True) if n]
        for name, table in zip(names[len(model.tables) :], counted, strict=False):
            found = pieces(table.snapshot_counting_by, PARTS, room, arrow.counting_columns)
            files.append(arrow.write(attempt.folder, name, found))
    finally:
        model.thaw()
    swept = [removals for removals in own_removals if removals]
    for name, removals in zip(names[len(names) - len(swept) :], swept, strict=True):
        all_slots = int(owned[0]), int(owned[-1])
        pages = ((each, all_slots) for each in columns_of(removals, REMOVED_ROOM))
        files.append(arrow.write(attempt.folder, name, pages))
    for name, vectors in ((dense, at.dense.trainable), (state, {"values": at.dense.state})):
        files.append(arrow.write_vectors(attempt.folder, name, vectors))
    content: Shard = {
        "format": FORMAT,
        "number": attempt.number,
        "nonce": attempt.nonce,
        "server": server,
        "servers": routing.servers,
        "routing": folders.text(routing.to_message()),
        "model": folders.text(model.spec),
        "version": at.dense.version,
        "step": at.dense.step,
        "pushes": cast("list[AppliedPush]", at.applied),
        "rows": rows[: len(model.tables)],
        "counting": at.counting,
        "removed": removed,
        "files": files,
        "journal": cast("JournalPosition | None", journal),
        "lifecycle": at.lifecycle,
        "update": at.update,
    }
    if any(at.forgotten):
        content["forgotten"] = [*at.forgotten]
    described = manifests.write(attempt.folder, f"{prefix}.json", content)
    size = described["bytes"] + sum(each["bytes"] for each in files)
    return {"manifest": described, "bytes": size, "version": at.dense.version}


def write_empty_shards(
    attempt: Attempt, server: int, routing: Routing, spec: pb.ModelSpec, at: Cut
) -> dict[int, ShardEntry]:
    """Write the shards of the servers that are absent, if `server` is the first that is not.

    at: its cut. Returns what `write_shard` does, by server. Raises OSError if files cannot be
    written.
    """
    absent = routing.absent if server == routing.present[0] else ()
    return {each: write_empty_shard(attempt, each, routing, spec, at) for each in absent}


def write_empty_shard(
    attempt: Attempt, server: int, routing: Routing, spec: pb.ModelSpec, at: Cut
) -> ShardEntry:
    """Write the shard of a server that is absent, which has nothing.

    at: the cut of another server: what that has been told, the absent one would have been told,
    too. Raises OSError if files cannot be written.
    """
    model = ServerModel(spec, server, routing.dense, 0)
    nothing = np.zeros(0, np.float32)
    model.dense.initialize(nothing, nothing)
    dense = replace(model.freeze(), version=at.dense.version, step=at.dense.step)
    empty = replace(at, dense=dense, counting=[0] * len(model.tables), removed=(), forgotten=())
    if (lifecycle := at.lifecycle) is not None:
        none = [{"expired": 0, "evicted": 0, "counts": 0} for _ in model.tables]
        state = {**lifecycle, "plan": None, "part": 0, "owing": False, "removed": none}
        empty = replace(empty, lifecycle=cast("LifecycleState", state))
    return write_shard(attempt, server, routing, model, empty)


def _parts_of(owned: Array, count: int) -> Array:
    """The part of each routing slot, uint16 [16384]. owned: the slots of the shard, rising."""
    part_of = np.zeros(SLOTS, np.uint16)
    part_of[owned] = np.arange(owned.size) * count // owned.size
    return part_of


def _by_slots(
    by_part: Iterator[tuple[int, Piece]], room: int, owned: Array, part_of: Array
) -> Iterator[tuple[Piece, tuple[int, int]]]:
    """Regroup a table's snapshot into pieces of neighbouring routing slots.

    by_part: pieces of at most `room` rows, each of a part of `part_of`. Yields pieces, and the
    first and the last slot that their rows may have.
    """
    gathered: list[Piece] = []
    parts: list[int] = []

    def joined() -> tuple[Piece, tuple[int, int]]:
        slots = owned[np.isin(part_of[owned], parts)]
        rows = gathered[0] if len(gathered) == 1 else _concatenated(gathered)
        gathered.clear()
        parts.clear()
        return rows, (int(slots[0]), int(slots[-1]))

    # A piece that is full is a page; those that are left at the end make pages together.
    for part, rows in by_part:
        if sum(len(each[0]) for each in gathered) + len(rows[0]) > room - AT_ONCE and gathered:
            yield joined()
        gathered.append(rows)
        parts.append(part)
        if len(rows[0]) > room - AT_ONCE:
            yield joined()
        del rows  # not to be kept while the next are gathered
    if gathered:
        yield joined()


def _concatenated(pieces: list[Piece]) -> Piece:
    def joined(each: Any) -> Any:
        if isinstance(each[0], dict):
            return {name: np.concatenate([slots[name] for slots in each]) for name in each[0]}
        return np.concatenate(each)

    return tuple(map(joined, zip(*pieces, strict=True)))
