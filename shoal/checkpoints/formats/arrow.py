"""The Arrow files of a checkpoint: rows of a table, counted ids, and flat vectors.

Owns columns and their names. A table's file has `id`, `values`, a column for every
optimizer slot, `version` and `uses`; that of ids which are counted and have no row `id`, `version`
and `uses`; that of removed ids those of REMOVED_COLUMNS; a vector's file a column for the values
and each slot. Values are of the dtype that the
table's rows have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.files.storage import Storage
from shoal.native.optimizers import OptimizerSpec
from shoal.native.values import encoded

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import PagedFile

MAGIC = b"ARROW1\0\0"
"""Before the schema, of which a reader of a stream knows nothing."""

SLOT = "slot:"
"""Before an optimizer slot's name in a column's."""

VALUES = {
    "float32": ("values", pa.float32()),
    "float16": ("values", pa.float16()),
    # Arrow has no such type: the bits, under a name that nobody takes for the numbers'.
    "bfloat16": ("bfloat16:values", pa.uint16()),
}
"""The column of the rows' values, by their dtype: its name, and the type of a value."""

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def row_columns(
    ids: Array,
    values: Float32,
    slots: dict[str, Float32],
    versions: Array,
    uses: Array,
    value_dtype: str = "float32",
) -> dict[str, Any]:
    """Rows as columns of a table's file. value_dtype: of the rows, of which `values` are."""

    def listed(array: Array) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])

    columns = {"id": pa.array(ids), VALUES[value_dtype][0]: listed(encoded(values, value_dtype))}
    columns |= {SLOT + name: listed(slot) for name, slot in slots.items()}
    return columns | {"version": pa.array(versions), "uses": pa.array(uses)}


COUNTING_COLUMNS = {"id": pa.int64(), "version": pa.int64(), "uses": pa.uint32()}
"""Columns of a file of counted ids."""


REMOVED_COLUMNS = {
    "id": pa.int64(),
    "step": pa.int64(),
    "event_time": pa.int64(),
    "eviction": pa.bool_(),
}
"""Columns of a file of removed ids: when that was, by the server's steps and its event clock (0: it
has none), and whether it was for max_rows."""


def counting_columns(ids: Array, versions: Array, uses: Array) -> dict[str, Any]:
    """Counted ids as columns of their file."""
    return {"id": pa.array(ids), "version": pa.array(versions), "uses": pa.array(uses)}


def write(
    storage: Storage, name: str, pieces: Iterable[tuple[dict[str, Any], tuple[int, int] | None]]
) -> PagedFile:
    """Write pieces of one schema; no piece is an empty file. Returns its description.

    pieces: columns, and from which routing slot to which their rows are; None for vectors. A
    page of the file is a piece, the first with the schema before it; the last is the end of the
    file, which has no rows.
    """
    with manifests.writing(storage, name) as file:
        writer = None
        for columns, slots in pieces:
            batch = pa.RecordBatch.from_pydict(columns)
            if writer is None:
                writer = pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
            file.end_page(batch.num_rows, slots)
        if writer is None:
            writer = pa.ipc.new_file(file, pa.schema([]))
        writer.close()
        file.end_page()
    return file.paged


def write_vectors(storage: Storage, name: str, vectors: dict[str, Float32]) -> PagedFile:
    """Write vectors of one length by name. Returns the file's description."""
    columns = {key: pa.array(each) for key, each in vectors.items()}
    return write(storage, name, [(columns, None)])


def read(
    storage: Storage, described: PagedFile, columns: Mapping[str, pa.DataType]
) -> Iterator[dict[str, Array]]:
    """The pieces of a file: columns by name, lists as [n, length]. Each byte is read once.

    columns: that it is to have, in this order. A piece is compared with its checksum before
    it is given. Raises CheckpointError naming the file if it is not as written, or not of
    these columns.
    """
    path = storage.path(described["name"])
    end = len(described["pages"]) - 1
    for number, page in enumerate(manifests.pages(storage, described)):
        if number == end:
            continue  # for readers that go by the file's end
        yield piece(path, page, number, columns)


def piece(
    path: str, page: bytes, number: int, columns: Mapping[str, pa.DataType]
) -> dict[str, Array]:
    """The piece of rows that page `number` of a file is; as `read`. Not of its last page.

    path: of the file, for errors.
    """
    wanted = pa.schema(columns)
    try:
        # Of a file that is read from its beginning this is the form for streams.
        if number == 0:
            stream = pa.ipc.open_stream(pa.BufferReader(page[len(MAGIC) :]))
            schema, batch = stream.schema, stream.read_next_batch()
            if schema.names != wanted.names or schema.types != wanted.types:
                found = " ".join(f"{field.name}:{field.type}" for field in schema)
                raise CheckpointError(f"{path}: has other columns than its table: {found}")
        else:
            batch = pa.ipc.read_record_batch(pa.py_buffer(page), wanted)
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise CheckpointError(f"{path}: a value is missing")
        return {name: _numbers(batch.column(name)) for name in columns}
    except (OSError, EOFError, ValueError, StopIteration, pa.ArrowException) as error:
        raise CheckpointError(f"{path}: not a file of rows: {error}") from error


def table_columns(
    dim: int, optimizer: OptimizerSpec, value_dtype: str = "float32"
) -> dict[str, pa.DataType]:
    """Columns of a table's file. value_dtype: of the rows."""
    slots = dict.fromkeys(optimizer.slot_names, optimizer.slot_width(dim))
    values, kind = VALUES[value_dtype]
    return {
        "id": pa.int64(),
        values: pa.list_(kind, dim),
        **{SLOT + name: pa.list_(pa.float32(), width) for name, width in slots.items()},
        "version": pa.int64(),
        "uses": pa.uint32(),
    }


def vector_columns(names: Iterable[str]) -> dict[str, pa.DataType]:
    """Columns of a file of vectors."""
    return dict.fromkeys(names, pa.float32())


def _numbers(column: Any) -> Array:
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        if values.null_count:
            raise ValueError("a value is missing")
        flat: Array = values.to_numpy()
        return flat.reshape(len(column), column.type.list_size)
    numbers: Array = column.to_numpy(zero_copy_only=not pa.types.is_boolean(column.type))
    return numbers
