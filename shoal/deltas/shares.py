"""The file of a share: pages of rows, removed ids and dense elements, written and read.

A page is an Arrow stream of its own, so pyarrow alone reads the file: `pa.ipc.open_stream` again
and again. The columns are those of a checkpoint's files (arrow.py), without optimizer slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.arrow import VALUES
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.deltas.schema import DeltaFile, DeltaPage, Kind
from shoal.files.storage import Storage
from shoal.native.values import decode, encoded

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Page:
    """A page: rows of a table, removed ids of one, or elements of a dense vector.

    ids: int64 [n], of the first two kinds. values: float32 [n, dim] of rows, in the table's dtype
    `value_dtype`; float32 [n] of elements. table: the position of its table. first: the place of
    the first element in the vector.
    """

    kind: Kind
    table: int = 0
    first: int = 0
    ids: Int64 | None = None
    values: Float32 | None = None
    value_dtype: str = "float32"

    def _columns(self) -> dict[str, Any]:
        if self.kind == "removed":
            return {"id": pa.array(self.ids)}
        assert self.values is not None
        if self.kind != "rows":
            return {"values": pa.array(self.values)}
        name, _ = VALUES[self.value_dtype]
        flat = pa.array(encoded(self.values, self.value_dtype).reshape(-1))
        listed = pa.FixedSizeListArray.from_arrays(flat, self.values.shape[1])
        return {"id": pa.array(self.ids), name: listed}


def write(storage: Storage, name: str, pages: Iterable[Page]) -> DeltaFile:
    """Write a share's file, whole or not at all. Returns its description. Raises OSError."""
    kinds: list[dict[str, Any]] = []
    with manifests.writing(storage, name) as file:
        for page in pages:
            batch = pa.RecordBatch.from_pydict(page._columns())
            place = {"first": page.first}
            if page.kind in ("removed", "rows"):
                place = {"table": page.table}
            told = {"kind": page.kind, **{key: str(value) for key, value in place.items()}}
            batch = batch.replace_schema_metadata(told)
            with pa.ipc.new_stream(file, batch.schema) as writer:
                writer.write_batch(batch)
            file.end_page()
            kinds.append({"kind": page.kind, "rows": batch.num_rows, **place})
    paged = file.paged
    described = [
        cast(DeltaPage, {**page, **kind}) for page, kind in zip(paged["pages"], kinds, strict=True)
    ]
    return {**file.described, "pages": described}


def read(storage: Storage, described: DeltaFile) -> Iterator[Page]:
    """The pages of a share's file, each compared with its checksum before it is given.

    Raises CheckpointError naming the file if it is not as it was written.
    """
    path = storage.path(described["name"])
    pages = manifests.pages(storage, cast("Any", described))
    for page, data in zip(described["pages"], pages, strict=True):
        yield _checked_page(path, page, data)


def read_some(
    storage: Storage, described: DeltaFile, wanted: Callable[[DeltaPage], bool]
) -> Iterator[Page]:
    """The pages of a share's file that are wanted; no others are read.

    Raises CheckpointError as `read`.
    """
    path, start = storage.path(described["name"]), 0
    for number, page in enumerate(described["pages"]):
        if wanted(page):
            data = manifests.page(storage, cast("Any", described), number, start)
            yield _checked_page(path, page, data)
        start += page["bytes"]


def _checked_page(path: str, page: DeltaPage, data: bytes) -> Page:
    try:
        return _page(page, data)
    except (OSError, EOFError, ValueError, StopIteration, pa.ArrowException) as error:
        raise CheckpointError(f"{path}: not a share: {error}") from error


def _page(page: DeltaPage, data: bytes) -> Page:
    stream = pa.ipc.open_stream(pa.py_buffer(data))
    batch = stream.read_next_batch()
    batch.validate(full=True)
    if batch.num_rows != page["rows"] or any(column.null_count for column in batch.columns):
        raise ValueError(f"{batch.num_rows} rows, or a value is missing")
    names, types = batch.schema.names, batch.schema.types
    kind, table, first = page["kind"], page.get("table", 0), page.get("first", 0)
    if kind in ("trainable", "state"):
        _require(names == ["values"] and types == [pa.float32()], batch)
        return Page(kind, first=first, values=batch.column(0).to_numpy())
    _require(names[0] == "id" and types[0] == pa.int64(), batch)
    ids = batch.column(0).to_numpy()
    if kind == "removed":
        _require(len(names) == 1, batch)
        return Page(kind, table, ids=ids)
    if len(names) == 2 and pa.types.is_fixed_size_list(types[1]):
        for dtype, column in VALUES.items():
            if column == (names[1], types[1].value_type):
                flat = batch.column(1).flatten().to_numpy()
                values = decode(flat.reshape(len(ids), types[1].list_size))
                return Page(kind, table, ids=ids, values=values, value_dtype=dtype)
    raise ValueError(f"of other columns: {batch.schema}")


def _require(right: bool, batch: pa.RecordBatch) -> None:
    if not right:
        raise ValueError(f"of other columns: {batch.schema}")
