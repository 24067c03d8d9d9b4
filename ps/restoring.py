"""A server's share of a checkpoint, read back: by several threads, each byte once.

Owns which pages of which shares are read, and what of them is this server's. What is in a share
is checkpoint.py's, the files' form shoal.checkpoints'.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import arrow, contents
from shoal.checkpoints.contents import dense_slices, state_slice
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.threads import for_each
from shoal.native import ids as native_ids
from shoal.proto import faults
from shoal.proto.routing import Routing, flat_size, slice_of
from shoal.ps.progress import Progress
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import ServerModel

Float32 = npt.NDArray[np.float32]


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
    _read_rows(checkpoint, shares, model, server, routing, progress)
    dense, state = _dense(checkpoint, shares, server, routing, progress)
    version = max(checkpoint.shares[share]["version"] for share in shares)
    step = max(checkpoint.shares[share]["step"] for share in shares)
    model.restore(version, step, dense, state)
    if same:
        pushes.restore([{**push} for push in checkpoint.shares[server]["pushes"]])
    return model


def _read_rows(
    checkpoint: Checkpoint,
    shares: Iterable[int],
    model: ServerModel,
    server: int,
    routing: Routing,
    progress: Progress,
) -> None:
    """Assign the rows of all tables that are this server's."""
    files = [
        contents.table_pages(checkpoint, share, position)
        for share in shares
        for position in range(len(model.tables))
    ]
    found: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def take(page: contents.Page) -> None:
        columns = contents.page_rows(checkpoint, page)
        if columns is not None:
            with lock:
                found[page.server, page.position] += columns["id"].size
            owners = routing.owners[native_ids.slot_of(columns["id"])]
            ours = owners == server
            if not ours.all():
                columns = {name: column[ours] for name, column in columns.items()}
            slots = {
                name.removeprefix(arrow.SLOT): column
                for name, column in columns.items()
                if name.startswith(arrow.SLOT)
            }
            model.tables[page.position].assign(
                columns["id"],
                columns["values"],
                versions=columns["version"],
                use_counts=columns["uses"],
                slots=slots,
            )
        progress.advance(page.bytes)
        faults.point("share-restoring")

    for_each(take, _alternating(files))
    for pages in files:
        (share, position) = pages[0].server, pages[0].position
        contents.check_rows(checkpoint, share, position, found[share, position])


def _alternating(files: Iterable[list[contents.Page]]) -> list[contents.Page]:
    """All pages, those of different files side by side: rows enter one table one by one."""
    placed = [
        ((page.number + 0.5) / len(pages), page.server, page.position, page)
        for pages in files
        for page in pages
    ]
    return [page for *_, page in sorted(placed, key=lambda each: each[:3])]


def _dense(
    checkpoint: Checkpoint,
    shares: Iterable[int],
    server: int,
    routing: Routing,
    progress: Progress,
) -> tuple[dict[str, Float32], Float32]:
    """What this server is to hold of the dense variables, with their slots, and of the others."""
    spec = checkpoint.model
    trainable: dict[int, dict[str, Float32]] = {}
    state: dict[int, dict[str, Float32]] = {}

    def take(share: int) -> None:
        trainable[share] = dense_slices(checkpoint, share)
        state[share] = {"values": state_slice(checkpoint, share)}
        progress.advance(sum(file["bytes"] for file in checkpoint.shares[share]["files"][-2:]))

    for_each(take, shares)
    dense = _joined(checkpoint, trainable, server, routing, flat_size(spec.trainable))
    rest = _joined(checkpoint, state, server, routing, flat_size(spec.non_trainable))
    return dense, rest["values"]


def _joined(
    checkpoint: Checkpoint,
    slices: dict[int, dict[str, Float32]],
    server: int,
    routing: Routing,
    size: int,
) -> dict[str, Float32]:
    """What this server is to hold of flat vectors of `size`, by the slices of shares."""
    ours = slice_of(size, server, routing.servers)
    parts: dict[str, list[Float32]] = {}
    for share in sorted(slices):
        theirs = slice_of(size, share, len(checkpoint.shares))
        start = max(0, ours.start - theirs.start)
        for name, column in slices[share].items():
            part = column[start : max(start, ours.stop - theirs.start)]
            parts.setdefault(name, []).append(part)
    return {name: np.concatenate(each) for name, each in parts.items()}
