"""Types of Arrow that mean the same as plainer ones, which other code takes: and the plain ones.

Views, run ends and lists with separate lengths come from newer libraries. What they hold is what
strings, values and lists do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

_VIEWS = {
    name: plain
    for name, plain in (("string_view", pa.string()), ("binary_view", pa.binary()))
    if hasattr(pa, name)
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without views and run ends, at any depth."""
    types = pa.types
    if str(kind) in _VIEWS:
        return _VIEWS[str(kind)]
    if types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if listed and plain_type(kind.value_type) == kind.value_type:
        return kind  # with the name of its elements
    if types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if types.is_large_list(kind) or str(kind).startswith("large_list_view<"):
        return pa.large_list(plain_type(kind.value_type))
    if types.is_list(kind) or str(kind).startswith("list_view<"):
        return pa.list_(plain_type(kind.value_type))
    return kind


def same_meaning(kind: pa.DataType) -> pa.DataType:
    """The one of the types of equal values that stands for them: no dictionary, nothing large."""
    kind, types = plain_type(kind), pa.types
    if types.is_dictionary(kind):
        return same_meaning(kind.value_type)
    if types.is_fixed_size_list(kind):
        return pa.list_(same_meaning(kind.value_type), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(same_meaning(kind.value_type))
    if types.is_large_string(kind):
        return pa.string()
    return pa.binary() if types.is_large_binary(kind) else kind


def name_there_twice(names: Iterable[str]) -> str:
    """A name that two columns have, in words, as one of them would be lost; "" if none."""
    found = (name for name, times in Counter(names).items() if times > 1)
    return next((f"the name {name!r} is there twice" for name in found), "")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema of plain types, without metadata but that of its fields.

    Raises ArrowInvalid if two fields have one name.
    """
    if twice := name_there_twice(schema.names):
        raise pa.ArrowInvalid(twice)
    fields = [field.with_type(plain_type(field.type)) for field in schema]
    return pa.schema(fields)


def plain(column: pa.Array) -> pa.Array:
    """A column in its plain type. Raises ArrowException."""
    return of_type(column, plain_type(column.type))


def of_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in another type of the same meaning. Raises ArrowException."""
    found = column.type
    if found.equals(kind):
        return column
    if pa.types.is_run_end_encoded(found):
        return of_type(pc.run_end_decode(column), kind)
    if pa.types.is_dictionary(found):
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        indices, values = column.indices, of_type(column.dictionary, value)
        if pa.types.is_dictionary(kind):
            return pa.DictionaryArray.from_arrays(indices, values).cast(kind)
        return values.take(indices)
    if pa.types.is_dictionary(kind):
        return of_type(column, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_fixed_size_list(kind):
        values = of_type(column.flatten(), kind.value_type) if not column.null_count else None
        if values is None:
            return column.cast(kind)
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        lengths = pc.list_value_length(column)
        ends = pc.cumulative_sum(pc.fill_null(lengths, 0))
        start = pa.array([0], ends.type)
        offsets = pa.concat_arrays([start, ends]).cast(
            pa.int64() if pa.types.is_large_list(kind) else pa.int32()
        )
        mask = column.is_null() if column.null_count else None
        values = of_type(column.flatten(), kind.value_type)
        return made.from_arrays(offsets, values, type=kind, mask=mask)
    return column.cast(kind)


def of_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, in types of the same meaning. Raises ArrowException."""
    if batch.schema.equals(schema):
        return batch
    columns = [of_type(batch.column(field.name), field.type) for field in schema]
    return pa.record_batch(columns, schema=schema)
