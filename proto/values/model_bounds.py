"""The bounds on the size of a model by its ModelSpec, no matter who sends it or has written it.

Owns the bounds, which are checked before memory is reserved for anything of the model. native
knows the meaning of its optimizers and initializers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.proto import shoal_pb2 as pb

MAX_TABLES = 4_096
"""An empty table takes 54 kB of a server."""

MAX_DIM = 65_536
"""Of a table's rows, as native/rowstore.pyx has it."""

MAX_VARIABLES = 65_536
"""Of each kind."""

MAX_RANK = 32
"""Dimensions of a variable."""

MAX_ELEMENTS = 2**40
"""Of the variables of a kind together."""

MAX_TEXT = 4_096
"""Characters of a name, an optimizer or an initializer."""

MAX_ADMIT_AFTER = 2_047
"""Of a table, as native/rowstore.pyx has it."""

MAX_EXPIRE_AFTER = 2**40
"""Seconds: in microseconds, too, it is an int64."""

VALUE_DTYPES = ("", "float32", "bfloat16", "float16")


def check_model(model: pb.ModelSpec) -> None:
    """Raises ValueError naming the field that is out of bounds."""
    _at_most("tables", len(model.tables), MAX_TABLES)
    _at_most("dense_optimizer", len(model.dense_optimizer), MAX_TEXT)
    for position, table in enumerate(model.tables):
        field = f"tables[{position}]"
        if not 1 <= table.dim <= MAX_DIM:
            raise ValueError(f"{field}.dim: {table.dim} is not between 1 and {MAX_DIM}")
        if table.value_dtype not in VALUE_DTYPES:
            raise ValueError(f"{field}.value_dtype: {table.value_dtype[:50]!r}")
        if table.vocabulary < 0:
            raise ValueError(f"{field}.vocabulary: {table.vocabulary} is negative")
        _at_most(f"{field}.admit_after", table.admit_after, MAX_ADMIT_AFTER)
        _at_most(f"{field}.expire_after", table.expire_after, MAX_EXPIRE_AFTER)
        for name in ("expire_after", "max_rows"):
            if getattr(table, name) < 0:
                raise ValueError(f"{field}.{name}: {getattr(table, name)} is negative")
        for name in ("name", "optimizer", "initializer"):
            _at_most(f"{field}.{name}", len(getattr(table, name)), MAX_TEXT)
    _check_variables("trainable", model.trainable)
    _check_variables("non_trainable", model.non_trainable)


def _check_variables(field: str, variables: Sequence[pb.VariableSpec]) -> None:
    _at_most(field, len(variables), MAX_VARIABLES)
    total = 0
    for position, variable in enumerate(variables):
        each = f"{field}[{position}]"
        _at_most(f"{each}.name", len(variable.name), MAX_TEXT)
        # Before they are multiplied: the product of many takes long.
        _at_most(f"{each}.shape", len(variable.shape), MAX_RANK)
        size = math.prod(variable.shape)
        if any(extent < 0 for extent in variable.shape) or size >= MAX_ELEMENTS:
            raise ValueError(f"{each}.shape: {list(variable.shape)}")
        total += size
    if total >= MAX_ELEMENTS:
        raise ValueError(f"{field}: {total} elements, of which there may be {MAX_ELEMENTS - 1}")
    for position, variable in enumerate(variables):
        if not 0 <= variable.offset <= total - math.prod(variable.shape):
            raise ValueError(f"{field}[{position}].offset: {variable.offset}")


def _at_most(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise ValueError(f"{field}: {count}, and at most {limit} are taken")
