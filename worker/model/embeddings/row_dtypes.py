"""The dtype of a table's rows, which is that of the layer's variable.

Keras has two dtypes of a layer: its variables', which the servers keep, and the one it computes
in, which its result has. "bfloat16" is both, and "mixed_bfloat16" computes in bfloat16 by float32
variables. So a layer gives what the same layer gives in Keras alone, and in the export.
"""

from __future__ import annotations

from typing import Any

from shoal.layers.embedding import ROW_DTYPES


def holds_rows(layer: Any) -> bool:
    """True if servers have rows of the dtype of an embedding layer's variable."""
    return layer.variable_dtype in ROW_DTYPES


def value_dtype(layer: Any) -> str:
    """TableSpec.value_dtype of an embedding layer that `holds_rows`; "" for float32."""
    dtype = str(layer.variable_dtype)
    return "" if dtype == "float32" else dtype
