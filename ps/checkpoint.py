"""One server's share of a checkpoint, to files and back.

Owns what is in a share: the server after exactly the pushes that it names. They are noted
and the rows fixed in one pause between pushes (`cut`), and the rows are written while later
pushes go on. The files' form is shoal.checkpoints'; when to take a checkpoint is the
master's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import arrow, folders, manifests
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.storage import Storage
from shoal.native import ids as native_ids
from shoal.proto.routing import Routing, slice_of
from shoal.ps.gradients import flat_size
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import FrozenDense, ServerModel

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
    folder: Storage,
    server: int,
    routing: Routing,
    model: ServerModel,
    at: Cut,
    between_pieces: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Write the share of a cut into `folder`, and thaw the model.

    between_pieces: called between two pieces of rows; what it raises ends the writing.

    Returns what the manifest of the whole says of it. Raises OSError if files cannot be
    written, MemoryError if rows changed meanwhile do not fit.
    """
    files: list[dict[str, Any]] = []
    rows: list[int] = []
    prefix = f"server-{server:04d}"

    def pieces(table: Any) -> Iterator[dict[str, Any]]:
        for piece in table.snapshot(ROWS_PER_PIECE):
            rows[-1] += len(piece[0])
            yield arrow.row_columns(*piece)
            between_pieces()

    try:
        for position, table in enumerate(model.tables):
            rows.append(0)
            name = f"{prefix}.table-{position:04d}.arrow"
            files.append(arrow.write(folder, name, pieces(table)))
    finally:
        model.thaw()
    for name, vectors in (("dense", at.dense.trainable), ("state", {"values": at.dense.state})):
        files.append(arrow.write_vectors(folder, f"{prefix}.{name}.arrow", vectors))
    content = {
        "format": folders.FORMAT,
        "server": server,
        "servers": routing.servers,
        "routing": folders.text(routing.to_message()),
        "model": folders.text(model.spec),
        "version": at.dense.version,
        "step": at.dense.step,
        "pushes": at.applied,
        "rows": rows,
        "files": files,
    }
    described = manifests.write(folder, f"{prefix}.json", content)
    size = described["bytes"] + sum(each["bytes"] for each in files)
    return {"manifest": described, "bytes": size, "version": at.dense.version}


def restore(
    checkpoint: Checkpoint, server: int, routing: Routing, pushes: PushRegister
) -> ServerModel:
    """The share of server `server` of `routing.servers`, however many wrote it.

    With another number of servers no push is known as applied: the workers that sent them
    are gone. Raises CheckpointError naming a file that is not as written.
    """
    spec = checkpoint.model
    model = ServerModel(spec, server, routing.servers)
    same = checkpoint.same_cut(routing)
    # A share of the same cut holds all that is ours.
    shares = [checkpoint.shares[server]] if same else checkpoint.shares
    for share in shares:
        for position, table in enumerate(model.tables):
            for columns in arrow.read(checkpoint.folder, share["files"][position]):
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
    dense = _vectors(checkpoint, shares, server, routing, -2, flat_size(spec.trainable))
    state = _vectors(checkpoint, shares, server, routing, -1, flat_size(spec.non_trainable))
    version = max(share["version"] for share in shares)
    step = max(share.get("step", share["version"]) for share in shares)
    model.restore(version, step, dense, state["values"])
    if same:
        pushes.restore(shares[0]["pushes"])
    return model


def _vectors(
    checkpoint: Checkpoint,
    shares: list[dict[str, Any]],
    server: int,
    routing: Routing,
    file: int,
    size: int,
) -> dict[str, Float32]:
    """The slice of the flat vectors in a file that this server is to hold."""
    ours = slice_of(size, server, routing.servers)
    parts: dict[str, list[Float32]] = {}
    for share in shares:
        theirs = slice_of(size, share["server"], share["servers"])
        for columns in arrow.read(checkpoint.folder, share["files"][file]):
            for name, column in columns.items():
                start = max(0, ours.start - theirs.start)
                part = column[start : max(start, ours.stop - theirs.start)]
                parts.setdefault(name, []).append(part)
    return {name: np.concatenate(each) for name, each in parts.items()}
