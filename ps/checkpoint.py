"""One server's share of a checkpoint, to files and back.

Owns what is in a share: the server after exactly the pushes that it names. They are noted
and the rows fixed in one pause between pushes (`cut`), and the rows are written while later
pushes go on. The files' form is shoal.checkpoints'; when to take a checkpoint is the
master's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import arrow, contents, folders, manifests
from shoal.checkpoints.contents import dense_slices, state_slice
from shoal.checkpoints.folders import Attempt, Checkpoint
from shoal.checkpoints.manifests import FORMAT
from shoal.native import ids as native_ids
from shoal.proto import faults
from shoal.proto.routing import Routing, flat_size, slice_of
from shoal.ps.progress import Progress
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import FrozenDense, ServerModel

if TYPE_CHECKING:
    from shoal.checkpoints.schema import AppliedPush, JournalPosition, PagedFile, Share, ShareEntry

ROWS_PER_PIECE = 32768

Float32 = npt.NDArray[np.float32]


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


def write_share(
    attempt: Attempt,
    server: int,
    routing: Routing,
    model: ServerModel,
    at: Cut,
    between_pieces: Callable[[], None] = lambda: None,
    journal: dict[str, Any] | None = None,
) -> ShareEntry:
    """Write the share of a cut into an attempt's folder, and thaw the model.

    between_pieces: called between two pieces of rows; what it raises ends the writing.
    journal: how far the master's journal was, as the server has been told.

    Returns what the manifest of the whole says of it. Raises OSError if files cannot be
    written, MemoryError if rows changed meanwhile do not fit.
    """
    from shoal.checkpoints import schema  # late: it takes the start of a process a while

    files: list[PagedFile] = []
    rows: list[int] = []
    prefix = schema.share_prefix(server, attempt.nonce)
    *names, dense, state = schema.share_files(prefix, len(model.tables))

    def pieces(table: Any) -> Iterator[dict[str, Any]]:
        for piece in table.snapshot(ROWS_PER_PIECE):
            rows[-1] += len(piece[0])
            yield arrow.row_columns(*piece)
            between_pieces()

    try:
        for name, table in zip(names, model.tables, strict=True):
            rows.append(0)
            files.append(arrow.write(attempt.folder, name, pieces(table)))
    finally:
        model.thaw()
    for name, vectors in ((dense, at.dense.trainable), (state, {"values": at.dense.state})):
        files.append(arrow.write_vectors(attempt.folder, name, vectors))
    content: Share = {
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


def restore(
    checkpoint: Checkpoint,
    server: int,
    routing: Routing,
    pushes: PushRegister,
    progress: Progress,
) -> ServerModel:
    """The share of server `server` of `routing.servers`, however many wrote it.

    progress: is told what is read. With another number of servers no push is known as applied:
    the workers that sent them are gone. Raises CheckpointError naming a file that is not as
    written, StoppedError if the server is to end.
    """
    model = ServerModel(checkpoint.model, server, routing.servers)
    same = checkpoint.same_cut(routing)
    # A share of the same cut holds all that is ours.
    shares = [server] if same else range(len(checkpoint.shares))
    files = (file for share in shares for file in checkpoint.shares[share]["files"])
    progress.begin(f"restore checkpoint {checkpoint.number}", sum(file["bytes"] for file in files))
    for share in shares:
        for position, table in enumerate(model.tables):
            for columns in contents.table_pieces(checkpoint, share, position):
                ids = columns.pop("id")
                ours = routing.owners[native_ids.slot_of(ids)] == server
                rows = {name: np.ascontiguousarray(c[ours]) for name, c in columns.items()}
                table.assign(
                    ids[ours],
                    rows.pop("values"),
                    versions=rows.pop("version"),
                    use_counts=rows.pop("uses"),
                    slots={name.removeprefix(arrow.SLOT): rows[name] for name in rows},
                )
                progress.advance(ids.nbytes + sum(column.nbytes for column in columns.values()))
                faults.point("share-restoring")
    spec = checkpoint.model
    dense = _ours(
        checkpoint, shares, server, routing, flat_size(spec.trainable), dense_slices, progress
    )
    state = _ours(
        checkpoint,
        shares,
        server,
        routing,
        flat_size(spec.non_trainable),
        lambda *share: {"values": state_slice(*share)},
        progress,
    )
    version = max(checkpoint.shares[share]["version"] for share in shares)
    step = max(checkpoint.shares[share]["step"] for share in shares)
    model.restore(version, step, dense, state["values"])
    if same:
        pushes.restore([{**push} for push in checkpoint.shares[server]["pushes"]])
    return model


def _ours(
    checkpoint: Checkpoint,
    shares: Iterable[int],
    server: int,
    routing: Routing,
    size: int,
    slices: Callable[[Checkpoint, int], dict[str, Float32]],
    progress: Progress,
) -> dict[str, Float32]:
    """What this server is to hold of flat vectors of `size`, of which shares have slices."""
    ours = slice_of(size, server, routing.servers)
    parts: dict[str, list[Float32]] = {}
    for share in shares:
        theirs = slice_of(size, share, len(checkpoint.shares))
        for name, column in slices(checkpoint, share).items():
            progress.advance(column.nbytes)
            start = max(0, ours.start - theirs.start)
            part = column[start : max(start, ours.stop - theirs.start)]
            parts.setdefault(name, []).append(part)
    return {name: np.concatenate(each) for name, each in parts.items()}
