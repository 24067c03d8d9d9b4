"""In which form an export holds the rows of a table: as the servers have them, or as int8.

Owns the forms in memory and what they take. A form is a dtype's name. Models hold rows in their
form; in a table's file, rows of 16 bits are float32, which every reader of Parquet knows.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.checkpoints.formats.quantized import dequantize, quantize
from shoal.errors import UserError
from shoal.native.values import decode, encoded
from shoal.proto import shoal_pb2 as pb

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Scales = Float32 | None
"""Of int8 rows, float32 [n]; None of others."""

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "int8": np.int8,
}
"""Of the rows in memory, by form."""


def form_of(table: pb.TableSpec, export_dtype: str) -> str:
    """The form of a table's rows under --export-dtype."""
    return "int8" if export_dtype == "int8" else table.value_dtype or "float32"


def row_bytes(form: str, dim: int) -> int:
    """Bytes of one row in memory, without its id."""
    return int(np.dtype(DTYPES[form]).itemsize) * dim + (4 if form == "int8" else 0)


def formed(rows: Float32, form: str) -> tuple[Array, Scales]:
    """Rows [n, dim] in a form. Raises ValueError for int8 of what is not finite."""
    if form == "int8":
        return quantize(rows)
    return rows.astype(DTYPES[form], copy=False), None


def formed_table(ids: Int64, rows: Float32, form: str, table: str) -> tuple[Array, Scales]:
    """The result of `formed` for the rows of a table. Raises UserError that names the id."""
    try:
        return formed(rows, form)
    except ValueError as error:
        wrong = ids[~np.isfinite(rows).all(axis=1)][0]
        raise UserError(
            f"--export-dtype int8: the row of id {wrong} in table {table!r} has a value that is "
            "not finite, which int8 cannot hold: export with --export-dtype auto, and look for the "
            "cause with --nonfinite-gradients"
        ) from error


def default_row(value: float, dim: int, table: pb.TableSpec) -> Float32:
    """The row of ids that were never trained, [dim], as the servers have it."""
    row = np.full(dim, value, np.float32)
    return decode(encoded(row, table.value_dtype or "float32"))


def as_float32(rows: Array, scales: Scales) -> Float32:
    """Rows of any form as the numbers that they are, [n, dim]."""
    if scales is not None:
        return dequantize(rows, scales)
    values: Float32 = rows.astype(np.float32, copy=False)
    return values


def columns(ids: Int64, rows: Array, scales: Scales) -> pa.Table:
    """Rows of any form as columns of their table's file."""
    values = as_float32(rows, None) if scales is None else rows
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    found = {"id": pa.array(ids), "vector": vectors}
    return pa.table(found if scales is None else found | {"scale": pa.array(scales)})
