"""A checkpoint of another model, written from one as a plan says: page by page.

Owns reading, changing and writing. What becomes of what is migration_plan.py's to say. At no time
are more rows in memory than a page for each thread; the dense variables are read whole, as
each worker holds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.checkpoints import folders
from shoal.checkpoints.contents import (
    counting_pages,
    dense_slices,
    page_rows,
    state_slice,
    table_pages,
    verify,
)
from shoal.checkpoints.folders import Attempt, Checkpoint
from shoal.checkpoints.formats import arrow, manifests, schema
from shoal.checkpoints.formats.manifests import FORMAT
from shoal.checkpoints.threads import for_each
from shoal.checkpoints.trained import copy_trained
from shoal.checkpoints.variable_plan import VariablePlan
from shoal.errors import UserError
from shoal.files.storage import Storage
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import flat_size
from shoal.tools.migration.migration_plan import Plan, TablePlan

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import (
        LifecycleState,
        Manifest,
        PagedFile,
        RemovedCounts,
        Shard,
        ShardEntry,
    )

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

PAGE_BYTES = 4 << 20
"""Of a page that is written, about: as servers write them."""

NUMBER = 1
"""Of the checkpoint that is written: it is the first of its folder."""


def migrate(
    source: Checkpoint,
    root: Storage,
    plan: Plan,
    initial: Mapping[str, Float32],
    told: Callable[[int], object] = lambda _: None,
) -> Manifest:
    """Write the checkpoint of `plan` into the empty folder `root`. Returns its manifest.

    initial: values of the new model's dense variables by name, for those that begin anew. told: is
    called with the bytes of each page that was read. It is a checkpoint only when all of it
    is written, and removed after an error. Raises UserError if something is refused or the folder
    is not empty, CheckpointError naming a file of `source`, or of what was written and then read
    back, that is not as it should be, OSError.
    """
    if plan.refused:
        raise UserError("the migration would lose or guess:\n  " + "\n  ".join(plan.refused))
    if names := root.names():
        raise UserError(f"{root.location} is not empty ({names[0]}): name a new folder")
    attempt = folders.begin(root, NUMBER, "")
    try:
        manifest = _write(source, attempt, plan, initial, told)
        verify(Checkpoint(root, NUMBER))
        copy_trained(source, root, "", NUMBER, attempt.nonce)
        return manifest
    except BaseException:
        folders.remove(attempt.folder)
        raise


def _write(
    source: Checkpoint,
    attempt: Attempt,
    plan: Plan,
    initial: Mapping[str, Float32],
    told: Callable[[int], object],
) -> Manifest:
    """Write all of a checkpoint; see `migrate`."""
    servers = range(len(source.shards))
    prefixes = [schema.shard_prefix(server, attempt.nonce) for server in servers]
    tables = range(len(plan.tables))
    # Of every table also the file of counted ids, which is not kept where there are none.
    names_of = [
        schema.shard_files(prefix, [1] * len(tables), [0] * len(tables)) for prefix in prefixes
    ]
    written: dict[tuple[int, int, bool], tuple[PagedFile, int]] = {}

    def write_file(item: tuple[int, int, bool]) -> None:
        server, position, counting = item
        count = 0

        def pieces() -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
            nonlocal count
            spec, table = plan.spec.tables[position], plan.tables[position]
            for rows, slots in _pages(source, server, spec, table, told, counting=counting):
                count += len(rows["id"])
                if counting:
                    yield arrow.counting_columns(rows["id"], rows["version"], rows["uses"]), slots
                else:
                    yield _columns(rows, spec), slots

        name = names_of[server][position + counting * len(tables)]
        written[item] = arrow.write(attempt.folder, name, pieces()), count
        if counting and not count:
            attempt.folder.discard(name)

    files_of_tables = [
        (server, position, counting)
        for server in servers
        for position in tables
        for counting in (False, True)
        if not counting
        or _counts(source, server, plan.spec.tables[position], plan.tables[position])
    ]
    for_each(write_file, files_of_tables)
    trainable, state = _dense(source, plan, initial)
    entries = []
    for server in servers:
        rows = [written[server, position, False] for position in tables]
        counted = [written.get((server, position, True), (None, 0)) for position in tables]
        files = [file for file, _ in rows]
        files += [file for file, count in counted if file is not None and count]
        for name, vectors in zip(
            names_of[server][-2:], (trainable, {"values": state}), strict=True
        ):
            parts = {
                key: each[source.routing.dense_slice(each.size, server)]
                for key, each in vectors.items()
            }
            files.append(arrow.write_vectors(attempt.folder, name, parts))
        counts = [count for _, count in rows], [count for _, count in counted]
        entries.append(_shard(source, attempt, server, plan, counts, files))
    return folders.complete(attempt, entries, {})


def _counts(source: Checkpoint, server: int, spec: pb.TableSpec, table: TablePlan) -> bool:
    """True if a shard of a table has ids that are counted, and the new table counts them on."""
    counts = table.source is not None and source.shards[server]["counting"][table.source]
    return bool(counts) and spec.admit_after > 1


def _shard(
    source: Checkpoint,
    attempt: Attempt,
    server: int,
    plan: Plan,
    counts: tuple[list[int], list[int]],
    files: list[PagedFile],
) -> ShardEntry:
    """Write the manifest of a shard. No push is in it: the job to come has workers of its own.

    counts: of each table, rows and counted ids.
    """
    before = source.shards[server]
    content: Shard = {
        "format": FORMAT,
        "number": attempt.number,
        "nonce": attempt.nonce,
        "server": server,
        "servers": before["servers"],
        "routing": before["routing"],
        "model": folders.text(plan.spec),
        "version": before["version"],
        "step": before["step"],
        "pushes": [],
        "rows": counts[0],
        "counting": counts[1],
        "removed": [0] * len(counts[0]),
        "files": files,
        "journal": None,
        "lifecycle": _lifecycle(before, plan),
    }
    name = f"{schema.shard_prefix(server, attempt.nonce)}.json"
    described = manifests.write(attempt.folder, name, content)
    size = described["bytes"] + sum(file["bytes"] for file in files)
    return {"manifest": described, "bytes": size, "version": before["version"]}


def _lifecycle(before: Shard, plan: Plan) -> LifecycleState | None:
    """The event clock and the counts of removed ids of the tables that are kept.

    Rows that were removed before are not told again, and no sweep is under way.
    """
    saved = before.get("lifecycle")
    if saved is None or not any(each.expire_after or each.max_rows for each in plan.spec.tables):
        return None
    lines = {line["table"]: line for line in saved["clock"]["lines"]}
    kept = [
        lines[table.source] | {"table": position}
        for position, table in enumerate(plan.tables)
        if table.source in lines and plan.spec.tables[position].expire_after
    ]
    nothing: RemovedCounts = {"expired": 0, "evicted": 0, "counts": 0}
    return {
        "clock": saved["clock"] | {"lines": kept},
        "plan": None,
        "part": 0,
        "owing": False,
        "removed": [
            nothing if table.source is None else saved["removed"][table.source]
            for table in plan.tables
        ],
    }


# ---------------------------------------------------------------- rows


def _columns(rows: dict[str, Array], spec: pb.TableSpec) -> dict[str, Any]:
    slots = {
        name.removeprefix(arrow.SLOT): column
        for name, column in rows.items()
        if name.startswith(arrow.SLOT)
    }
    return arrow.row_columns(
        rows["id"],
        rows["values"],
        slots,
        rows["version"],
        rows["uses"],
        spec.value_dtype or "float32",
    )


def _pages(
    source: Checkpoint,
    server: int,
    spec: pb.TableSpec,
    table: TablePlan,
    told: Callable[[int], object],
    *,
    counting: bool,
) -> Iterator[tuple[dict[str, Array], tuple[int, int]]]:
    """The new rows of a table in a shard, in pages, with the routing slots that they may have.

    counting: of the ids that are counted and have no row, instead.
    """
    if table.source is None:
        return
    optimizer = OptimizerSpec.from_json(spec.optimizer)
    initializer = InitializerSpec.from_json(spec.initializer)
    # It stays empty: its rows that were never trained are wanted.
    untrained = RowStore(spec.dim, optimizer, initializer, spec.seed)
    width = spec.dim + len(optimizer.slot_names) * optimizer.slot_width(spec.dim)
    room = max(1, PAGE_BYTES // (4 * width + 16))
    for page in (counting_pages if counting else table_pages)(source, server, table.source):
        rows = page_rows(source, page)
        told(page.bytes)
        if rows is None or page.slots is None:
            continue
        if table.vocabulary:
            ids = rows["id"]
            fitting = (ids >= 0) & (ids < table.vocabulary)
            rows = {name: column[fitting] for name, column in rows.items()}
        for start in range(0, len(rows["id"]), room):
            part = {name: column[start : start + room] for name, column in rows.items()}
            yield part if counting else changed(part, spec, table, untrained), page.slots


def changed(
    rows: dict[str, Array], spec: pb.TableSpec, table: TablePlan, untrained: RowStore
) -> dict[str, Array]:
    """Rows as the new table has them, by column.

    rows: as contents.table_pieces gives them. untrained: an empty store of the new table.
    """
    optimizer = OptimizerSpec.from_json(spec.optimizer)
    ids, values = rows["id"], rows["values"]
    if table.fill == "initial" and values.shape[1] < spec.dim:
        first: Float32 = untrained.lookup(np.ascontiguousarray(ids), missing="initial")
        first[:, : values.shape[1]] = values
        values = first
    new = {"id": ids, "values": _widened(values, spec.dim, 0.0)}
    width = optimizer.slot_width(spec.dim)
    starts = dict(zip(optimizer.slot_names, optimizer.slot_initial_values, strict=True))
    for name, how in table.slots.items():
        start = starts[name]
        if how == "initial":
            slot = np.full((len(ids), width), start, np.float32)
        else:
            slot = rows[arrow.SLOT + name]
            if how == "mean":
                slot = slot.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
            elif how == "spread":
                slot = np.repeat(slot, spec.dim, axis=1)
            slot = _widened(slot, width, start)
        new[arrow.SLOT + name] = slot
    return new | {"version": rows["version"], "uses": rows["uses"]}


def _widened(array: Float32, width: int, start: float) -> Float32:
    """The columns of an array [n, k] cut off, or filled with `start`, to [n, width]."""
    if array.shape[1] >= width:
        return np.ascontiguousarray(array[:, :width])
    wide = np.full((len(array), width), start, np.float32)
    wide[:, : array.shape[1]] = array
    return wide


# ---------------------------------------------------------------- dense variables


def _dense(
    source: Checkpoint, plan: Plan, initial: Mapping[str, Float32]
) -> tuple[dict[str, Float32], Float32]:
    """The new flat vectors: of the trainable variables, with slots, and of the others."""
    spec = source.model
    shards = range(len(source.shards))
    slices = [dense_slices(source, shard) for shard in shards]
    flat = {name: np.concatenate([each[name] for each in slices]) for name in slices[0]}
    state = np.concatenate([state_slice(source, shard) for shard in shards])
    # Names of variables, and of each slot of theirs that there is.
    saved = {each.name: _arrays(each, flat) for each in spec.trainable}
    saved |= {each.name: _arrays(each, {"values": state}) for each in spec.non_trainable}
    optimizer = OptimizerSpec.from_json(plan.spec.dense_optimizer)
    starts = dict(zip(optimizer.slot_names, optimizer.slot_initial_values, strict=True))
    by_name = {each.name: each for each in plan.variables}
    names = ["values", *optimizer.slot_names]
    vectors = {name: np.empty(flat_size(plan.spec.trainable), np.float32) for name in names}
    rest = np.empty(flat_size(plan.spec.non_trainable), np.float32)
    for variable in plan.spec.trainable:
        _put(variable, by_name[variable.name], saved, initial, vectors["values"], "values", 0.0)
        for name, start in starts.items():
            kept = plan.dense_slots[name] == "kept"
            vector = vectors[name]
            _put(variable, by_name[variable.name], saved, None, vector, name if kept else "", start)
    for variable in plan.spec.non_trainable:
        _put(variable, by_name[variable.name], saved, initial, rest, "values", 0.0)
    return vectors, rest


def _arrays(variable: pb.VariableSpec, flat: Mapping[str, Float32]) -> dict[str, Float32]:
    shape = tuple(variable.shape)
    start = variable.offset
    return {
        name: vector[start : start + math.prod(shape)].reshape(shape)
        for name, vector in flat.items()
    }


def _put(
    variable: pb.VariableSpec,
    how: VariablePlan,
    saved: Mapping[str, Mapping[str, Float32]],
    initial: Mapping[str, Float32] | None,
    vector: Float32,
    name: str,
    start: float,
) -> None:
    """Set the elements of a variable in a new flat vector.

    name: of the vector: "values", or a slot. initial: of values that begin anew; None for a slot,
    which begins with `start`, as the rows do that are new.
    """
    shape = tuple(variable.shape)
    place = slice(variable.offset, variable.offset + math.prod(shape))
    found = saved.get(how.source or "", {}).get(name)
    if found is None:
        vector[place] = start if initial is None else initial[variable.name].reshape(-1)
    elif how.rows is None:
        vector[place] = found.reshape(-1)
    else:
        new = np.full(shape, start, np.float32)
        rows = np.array(how.rows)
        new[rows >= 0] = found[rows[rows >= 0]]
        vector[place] = new.reshape(-1)
