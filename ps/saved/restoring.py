"""A server's shard of a checkpoint, read back: by several threads, each byte once.

Owns which pages of which shards are read, and what of them is this server's. What is in a shard
is checkpoint.py's, the files' form shoal.checkpoints'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import contents
from shoal.checkpoints.contents import dense_slices, state_slice
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats import arrow
from shoal.checkpoints.threads import for_each
from shoal.native import ids as native_ids
from shoal.native.rowstore import RowStore
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.merged_clocks import MergedClocks
from shoal.ps.saved.progress import Progress

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import AppliedPush

Flags = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


def restore(
    checkpoint: Checkpoint,
    server: int,
    routing: Routing,
    pushes: PushRegister | None,
    progress: Progress,
    spec: pb.ModelSpec | None = None,
    *,
    dense: int | None = None,
) -> ServerModel:
    """The shard of server `server` of `routing.servers`, however many wrote it.

    pushes: gets those that are in the shard; None: the workers that sent them are another job's.
    progress: is told what is read. spec: of the model, where options of it may be others than
    the checkpoint's. dense: how many servers divide the dense variables; 0: as many as where the
    checkpoint was written. None: those of `routing`. Raises CheckpointError naming a file that is
    not as written, StoppedError if the server is to end.

    Where the dense variables were divided otherwise, they come from all shards, and those pushes
    are known as applied that all shards have. Where only rows have moved since, dense values are
    the server's own, and rows of the slots that it has now come from all shards. All of its own
    come, too, unless `pushes` is None: a log that is done again is of those, and of the pushes that
    its own shard has. Without one (`dense` is None) those are known that all shards have which
    gave rows.
    """
    servers = routing.dense if dense is None else dense or checkpoint.routing.dense
    model = ServerModel(spec or checkpoint.model, server, servers, routing.slots(server))
    model.epoch = checkpoint.routing.epoch
    now = routing.owners == server
    model.gained = bool((now & (checkpoint.routing.owners != server)).any())
    everything = range(len(checkpoint.shards))
    same_dense = checkpoint.routing.dense == servers
    own = same_dense and server in checkpoint.routing.present
    owned = None
    # A shard of the same cut holds all that is ours.
    if not checkpoint.same_cut(routing):
        owned = _owned(checkpoint, server, now, own=own and pushes is not None)
    pages = list(_pages(checkpoint, [server] if owned is None else everything, owned))
    shards = [server] if own else everything
    dense_shards = _dense_shards(checkpoint, shards, model)
    size = sum(page.bytes for page in pages)
    size += sum(_dense_bytes(checkpoint, shard) for shard in dense_shards)
    progress.begin(f"restore checkpoint {checkpoint.number}", size)
    for position, table in enumerate(model.tables):
        # An index that grows step by step moves its entries again and again.
        table.reserve(sum(page.rows for page in pages if page.position == position))
    clocks = None if own else MergedClocks(checkpoint.shards)
    steps = partial(_near_steps, checkpoint, server) if clocks is None else clocks.steps
    _read_rows(checkpoint, pages, model, owned, steps, progress)
    trainable, state = _dense(checkpoint, dense_shards, model, progress)
    version = max(checkpoint.shards[shard]["version"] for shard in shards)
    step = max(checkpoint.shards[shard]["step"] for shard in shards)
    applied: Sequence[AppliedPush] = []
    if pushes is not None:
        givers = [server] if own else [*everything]
        if own and dense is None:
            # Shards are cut each at its own moment: of what one lacks, some rows lack it.
            giving = np.unique(checkpoint.routing.owners[now]).tolist()
            givers = sorted({server, *giving})
        applied = _in_all(checkpoint, givers)
    senders = {push["worker"]: (push["incarnation"], push["sequence"]) for push in applied}
    model.restore(version, step, trainable, state, senders)
    if pushes is not None:
        pushes.restore([{**push} for push in applied])
    if model.lifecycle is not None:
        saved = (
            checkpoint.shards[server].get("lifecycle")
            if clocks is None
            else clocks.state_of(server, routing.servers)
        )
        if saved is not None:
            model.lifecycle.restore(saved, step)
    return model


def _owned(checkpoint: Checkpoint, server: int, now: Flags, *, own: bool) -> dict[int, Flags]:
    """By shard, the slots whose rows the server takes of it, bool [16384]."""
    found = dict.fromkeys(range(len(checkpoint.shards)), now)
    if own:
        found[server] = np.ones_like(now)
    return found


def _near_steps(checkpoint: Checkpoint, server: int, shard: int, table: int, steps: Int64) -> Int64:
    """The steps of rows of another server's shard, as they are of this server's."""
    del table
    if shard == server:
        return steps
    ours, theirs = (checkpoint.shards[each]["step"] for each in (server, shard))
    return np.clip(steps + (ours - theirs), 0, ours)


def _in_all(checkpoint: Checkpoint, shards: Iterable[int]) -> list[AppliedPush]:
    """The last push of each worker that all of these shards have."""
    pushes = [checkpoint.shards[each]["pushes"] for each in shards]
    by_worker = [{push["worker"]: push for push in each} for each in pushes]
    common = set.intersection(*(set(each) for each in by_worker))
    return [
        min(
            (each[worker] for each in by_worker),
            key=lambda push: (push["incarnation"], push["sequence"]),
        )
        for worker in sorted(common)
    ]


def _pages(
    checkpoint: Checkpoint, shards: Iterable[int], owned: dict[int, Flags] | None
) -> Iterator[contents.Page]:
    """The pages of tables that may have rows of the slots in `owned`; None: all.

    Those of different files side by side: rows enter the index of one table one by one.
    """
    placed = []
    for shard in shards:
        slots = None if owned is None else owned[shard]
        if slots is not None and not slots.any():
            continue
        for position in range(len(checkpoint.model.tables)):
            for pages in (
                contents.table_pages(checkpoint, shard, position, slots),
                contents.counting_pages(checkpoint, shard, position, slots),
            ):
                for number, page in enumerate(pages):
                    placed.append(((number + 0.5) / len(pages), shard, position, page))
    for *_, page in sorted(placed, key=lambda each: each[:3]):
        yield page


def _read_rows(
    checkpoint: Checkpoint,
    pages: Iterable[contents.Page],
    model: ServerModel,
    owned: dict[int, Flags] | None,
    steps: Callable[[int, int, Int64], Int64],
    progress: Progress,
) -> None:
    """Assign the rows of pages that are of the slots in `owned`; None: all.

    steps: those of a shard's table, as they are here.
    """

    def take(page: contents.Page) -> None:
        columns = contents.page_rows(checkpoint, page)
        if columns is not None:
            if owned is not None:
                ours = owned[page.server][native_ids.slot_of(columns["id"])]
                if not ours.all():
                    columns = {name: column[ours] for name, column in columns.items()}
            columns["version"] = steps(page.server, page.position, columns["version"])
            _assign(model.tables[page.position], columns)
        progress.advance(page.bytes)
        faults.point("shard-restoring")

    for_each(take, pages)


def _assign(table: RowStore, columns: dict[str, npt.NDArray[Any]]) -> None:
    """Set what is in a page: rows, or counted ids."""
    ids, versions, uses = columns["id"], columns["version"], columns["uses"]
    if "values" not in columns:
        table.assign_counting(ids, versions, uses)
        return
    slots = {
        name.removeprefix(arrow.SLOT): column
        for name, column in columns.items()
        if name.startswith(arrow.SLOT)
    }
    table.assign(ids, columns["values"], versions=versions, use_counts=uses, slots=slots)


def _dense_shards(checkpoint: Checkpoint, shards: Iterable[int], model: ServerModel) -> list[int]:
    """The shards whose slices of the dense variables have elements of this server's."""

    def overlaps(shard: int) -> bool:
        pairs = (
            (checkpoint.routing.dense_slice(size, shard), ours)
            for size, ours in zip(model.dense.sizes, model.dense.slices, strict=True)
        )
        return any(max(a.start, b.start) < min(a.stop, b.stop) for a, b in pairs)

    # One at least, which says which optimizer slots there are.
    return [shard for shard in shards if overlaps(shard)] or [*shards][:1]


def _dense_bytes(checkpoint: Checkpoint, shard: int) -> int:
    return sum(file["bytes"] for file in checkpoint.shards[shard]["files"][-2:])


def _dense(
    checkpoint: Checkpoint,
    shards: Iterable[int],
    model: ServerModel,
    progress: Progress,
) -> tuple[dict[str, Float32], Float32]:
    """The server's part of the trainable values, with their slots, and of the others."""
    trainable: dict[int, dict[str, Float32]] = {}
    state: dict[int, dict[str, Float32]] = {}

    def take(shard: int) -> None:
        trainable[shard] = dense_slices(checkpoint, shard)
        state[shard] = {"values": state_slice(checkpoint, shard)}
        progress.advance(_dense_bytes(checkpoint, shard))

    for_each(take, shards)
    sizes, ours = model.dense.sizes, model.dense.slices
    dense = _joined(checkpoint, trainable, ours[0], sizes[0])
    rest = _joined(checkpoint, state, ours[1], sizes[1])
    return dense, rest["values"]


def _joined(
    checkpoint: Checkpoint,
    slices: dict[int, dict[str, Float32]],
    ours: slice,
    size: int,
) -> dict[str, Float32]:
    """The server's part of flat vectors of `size`, joined from the slices of shards."""
    parts: dict[str, list[Float32]] = {}
    for shard in sorted(slices):
        theirs = checkpoint.routing.dense_slice(size, shard)
        start = max(0, ours.start - theirs.start)
        for name, column in slices[shard].items():
            part = column[start : max(start, ours.stop - theirs.start)]
            parts.setdefault(name, []).append(part)
    return {name: np.concatenate(each) for name, each in parts.items()}
