"""One server's shard of a checkpoint, to files; back is restoring.py's.

Owns what is in a shard: the server after exactly the pushes that it names. They are noted
and the rows fixed in one pause between pushes (`cut`), and the rows are written while later
pushes go on. The files' form is shoal.checkpoints'; when to take a checkpoint is the
master's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import arrow, folders, manifests
from shoal.checkpoints.folders import Attempt
from shoal.checkpoints.manifests import FORMAT
from shoal.native.rowstore import RowStore
from shoal.proto.routing import SLOTS, Routing
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import AT_ONCE, FrozenDense, ServerModel, rows_of

if TYPE_CHECKING:
    from shoal.checkpoints.schema import AppliedPush, JournalPosition, PagedFile, Shard, ShardEntry

PIECE_BYTES = 4 << 20
"""Of rows in a page, about: what is written, and later read, checked and restored, at once."""

PARTS = 16
"""Of a shard's routing slots, whose rows are gathered apart until they fill a page. More of them
make another number of servers read less of what is not theirs, and cost a page's memory each."""

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Rows = tuple[Array, Float32, dict[str, Float32], Array, Array]
"""Ids, values, optimizer slots, versions and use counts, as a row store gives them."""


@dataclass(frozen=True)
class Cut:
    """A server at one moment; its rows are fixed until `ServerModel.thaw`.

    applied: the last push of each worker.
    """

    dense: FrozenDense
    applied: list[dict[str, int]]


def cut(
    model: ServerModel, pushes: PushRegister, noted: Callable[[Cut], object] = lambda _: None
) -> Cut:
    """Fix the server as it is, between two pushes.

    noted: called with it before the next push. Raises WireError before the dense values
    are there.
    """
    with pushes.paused() as applied:
        made = Cut(model.freeze(), applied)
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
    from shoal.checkpoints import schema  # late: it takes the start of a process a while

    files: list[PagedFile] = []
    rows: list[int] = []
    prefix = schema.shard_prefix(server, attempt.nonce)
    *names, dense, state = schema.shard_files(prefix, len(model.tables))

    def pieces(table: Any) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
        for piece, slots in _by_slots(table, np.flatnonzero(routing.owners == server)):
            rows[-1] += len(piece[0])
            yield arrow.row_columns(*piece), slots
            between_pieces()

    try:
        for name, table in zip(names, model.tables, strict=True):
            rows.append(0)
            files.append(arrow.write(attempt.folder, name, pieces(table)))
    finally:
        model.thaw()
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
        "rows": rows,
        "files": files,
        "journal": cast("JournalPosition | None", journal),
    }
    described = manifests.write(attempt.folder, f"{prefix}.json", content)
    size = described["bytes"] + sum(each["bytes"] for each in files)
    return {"manifest": described, "bytes": size, "version": at.dense.version}


def _by_slots(table: RowStore, owned: Array) -> Iterator[tuple[Rows, tuple[int, int]]]:
    """The rows of a table's snapshot, in pieces of rows of neighbouring routing slots.

    owned: the slots that the rows may have, rising. Gives the rows, and the first and the last
    slot of them.
    """
    part_of = np.zeros(SLOTS, np.uint16)
    part_of[owned] = np.arange(owned.size) * PARTS // owned.size
    room = rows_of(table, PIECE_BYTES)
    gathered: list[Rows] = []
    parts: list[int] = []

    def joined() -> tuple[Rows, tuple[int, int]]:
        slots = owned[np.isin(part_of[owned], parts)]
        rows = gathered[0] if len(gathered) == 1 else _concatenated(gathered)
        gathered.clear()
        parts.clear()
        return rows, (int(slots[0]), int(slots[-1]))

    # A piece that is full is a page; those that are left at the end make pages together.
    for part, rows in table.snapshot_by(part_of, PARTS, room):
        if sum(len(each[0]) for each in gathered) + len(rows[0]) > room - AT_ONCE and gathered:
            yield joined()
        gathered.append(rows)
        parts.append(part)
        if len(rows[0]) > room - AT_ONCE:
            yield joined()
        del rows  # not to be kept while the next are gathered
    if gathered:
        yield joined()


def _concatenated(pieces: list[Rows]) -> Rows:
    ids, values, slots, versions, uses = zip(*pieces, strict=True)
    by_name = {name: np.concatenate([each[name] for each in slots]) for name in slots[0]}
    return (
        np.concatenate(ids),
        np.concatenate(values),
        by_name,
        np.concatenate(versions),
        np.concatenate(uses),
    )
