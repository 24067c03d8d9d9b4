"""The Arrow files of a checkpoint: rows of a table, and flat vectors.

Owns columns and their names. A table's file has `id`, `values`, a column for every
optimizer slot, `version` and `uses`; a vector's file a column for the values and each slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.checkpoints import manifests
from shoal.checkpoints.manifests import CheckpointError
from shoal.checkpoints.storage import Storage

if TYPE_CHECKING:
    from shoal.checkpoints.schema import File

SLOT = "slot:"
"""Before an optimizer slot's name in a column's."""

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def row_columns(
    ids: Array, values: Float32, slots: dict[str, Float32], versions: Array, uses: Array
) -> dict[str, Any]:
    """Rows as columns of a table's file."""

    def listed(array: Float32) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])

    columns = {"id": pa.array(ids), "values": listed(values)}
    columns |= {SLOT + name: listed(slot) for name, slot in slots.items()}
    return columns | {"version": pa.array(versions), "uses": pa.array(uses)}


def write(storage: Storage, name: str, pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Write pieces of one schema; no piece is an empty file. Returns its description."""
    with manifests.writing(storage, name) as file:
        writer = None
        for columns in pieces:
            batch = pa.RecordBatch.from_pydict(columns)
            if writer is None:
                writer = pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
        if writer is None:
            writer = pa.ipc.new_file(file, pa.schema([]))
        writer.close()
    return {**file.described}


def write_vectors(storage: Storage, name: str, vectors: dict[str, Float32]) -> dict[str, Any]:
    """Write vectors of one length by name. Returns the file's description."""
    return write(storage, name, [{key: pa.array(each) for key, each in vectors.items()}])


def read(storage: Storage, described: dict[str, Any]) -> Iterator[dict[str, Array]]:
    """The pieces of a file, checked before: columns by name, lists as [n, length].

    Raises CheckpointError naming the file if it is not as written.
    """
    name = manifests.check(storage, cast("File", described))
    try:
        path = storage.local_path(name)
        if path is not None:
            with pa.memory_map(str(path)) as source:
                yield from _batches(source)
        else:
            with storage.read(name) as file:
                yield from _batches(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise CheckpointError(f"{storage.path(name)}: {error}") from error


def _batches(source: Any) -> Iterator[dict[str, Array]]:
    reader = pa.ipc.open_file(source)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        columns = zip(batch.schema.names, batch.columns, strict=True)
        yield {name: _numbers(column) for name, column in columns}


def _numbers(column: Any) -> Array:
    if pa.types.is_fixed_size_list(column.type):
        flat: Array = column.flatten().to_numpy()
        return flat.reshape(len(column), column.type.list_size)
    numbers: Array = column.to_numpy()
    return numbers
