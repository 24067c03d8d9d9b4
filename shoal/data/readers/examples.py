"""Files of tf.train.Example and SequenceExample: TFRecord files whose records are columns.

The messages are walked in native/examples.pyx, for the used features alone. Types are told by the
first records of some files: a feature with one value in each of them is a column of values, any
other one of lists. A list of a SequenceExample has its steps as elements, which are lists too
unless each has one value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.data.blocks import DamagedError, reporting_rows
from shoal.data.readers.tfrecord import TFRecordReader, records_in
from shoal.data.schemas import merged_schema, spread
from shoal.errors import Error, UserError
from shoal.native import examples

SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of a file from which the features are told."""

Int64 = npt.NDArray[np.int64]

_TYPES = {
    examples.BYTES: pa.binary(),
    examples.FLOATS: pa.float32(),
    examples.INTEGERS: pa.int64(),
}
_KINDS = {kind: number for number, kind in _TYPES.items()}

Feature = tuple[bytes, int, bool]
"""Name, kind, and whether it is a list of a SequenceExample's."""


class ExampleColumns:
    """The columns of messages.

    message: their name. lists: they are SequenceExamples.
    """

    def __init__(self, message: str, *, lists: bool) -> None:
        self._message, self._lists = message, lists
        self._sequences: set[str] = set()

    def kinds(self, records: list[bytes]) -> dict[str, pa.DataType | None]:
        """The types of the features of some messages. Raises DamagedError."""
        features = self._features(records)
        try:
            found = examples.columns_of(records, list(features.values()))
        except ValueError as error:
            raise self._damage(error, 0) from error
        kinds: dict[str, pa.DataType | None] = {}
        for (name, (_, kind, sequence)), (_, _, counts, _) in zip(
            features.items(), found, strict=True
        ):
            value = _TYPES[kind]
            single = bool(np.all(np.isin(counts, (1, examples.ABSENT))))
            kinds[name] = value if single else pa.list_(value)
            if sequence:
                kinds[name] = pa.list_(kinds[name])
                self._sequences.add(name)
        return kinds

    def _features(self, records: list[bytes]) -> dict[str, Feature]:
        """The features of some records, by name. Raises DamagedError."""
        features: dict[str, Feature] = {}
        for place, record in enumerate(records):
            try:
                for key, sequence, value in examples.features_in(record):
                    name = key.decode()
                    if name in features and features[name][2] == sequence:
                        continue
                    if name in features:
                        raise DamagedError(
                            place, f"feature {name!r} is in the context and in the lists, too"
                        )
                    if (kind := _kind_of(value, sequence)) is not None:
                        features[name] = key, kind, sequence
            except ValueError as error:
                raise self._damage(error, place) from error
        if not self._lists and any(sequence for *_, sequence in features.values()):
            raise DamagedError(
                0, "it is a tf.train.SequenceExample: give --data-format sequence-example"
            )
        return features

    def _damage(self, error: ValueError, first: int) -> DamagedError:
        known = len(error.args) == 2
        place, what = error.args if known else (0, "it is no message of this kind, or damaged")
        return DamagedError(first + place, f"not a {self._message} as in the first records: {what}")

    def batch(self, records: list[bytes], first: int, schema: pa.Schema) -> pa.RecordBatch:
        """The features of some messages, whose types `kinds` has told.

        first: the number of the first message. Raises DamagedError.
        """
        wanted = [
            (field.name.encode(), _KINDS[_value_type(field.type)], field.name in self._sequences)
            for field in schema
        ]
        try:
            found = examples.columns_of(records, wanted)
        except ValueError as error:
            raise self._damage(error, first) from error
        columns = []
        for field, (values, ends, counts, steps), (*_, sequence) in zip(
            schema, found, wanted, strict=True
        ):
            flat = _flat(values, ends, field.type)
            try:
                columns.append(_column(field.type, flat, counts, steps if sequence else None))
            except _OtherNumberError as error:
                raise DamagedError(
                    first + error.record,
                    f"feature {field.name!r} has {error.count} values, and one in each of the "
                    "first records",
                ) from error
        return pa.record_batch(columns, schema=schema)


class ExampleReader(TFRecordReader):
    """Reads files of tf.train.Example; see BlockReader."""

    message = "tf.train.Example"
    lists = False

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(pattern, **options)
        self._types: pa.Schema | None = None
        self._features = ExampleColumns(self.message, lists=self.lists)

    def _full_schema(self) -> pa.Schema:
        if self._types is None:
            guessed = [(path, self._guess(path)) for path in spread(self._paths)]
            self._types, self._faults = merged_schema(guessed, self._flag, same_columns=False)
            if not self._types:
                raise UserError(f"{self._flag}: {self._pattern} holds no features")
        return self._types

    def _guess(self, path: str) -> dict[str, pa.DataType | None]:
        with reporting_rows(path):
            data = self._storage.open(path).read_at(SAMPLE_BYTES, 0)
            records = list(records_in(data))
            if not records and data:
                raise DamagedError(0, f"the first record is longer than {SAMPLE_BYTES} bytes")
            return self._features.kinds(records)

    def _decode(
        self, data: bytes, first: int, _count: int, low: int, high: int, schema: pa.Schema
    ) -> pa.RecordBatch:
        records = self._records(data, first, low, high)
        return self._features.batch(records, first + low, schema)


class SequenceExampleReader(ExampleReader):
    """Reads files of tf.train.SequenceExample; see BlockReader."""

    message = "tf.train.SequenceExample"
    lists = True


class _OtherNumberError(Error):
    """A record has another number of values than one."""

    def __init__(self, record: int, count: int) -> None:
        super().__init__(record, count)
        self.record, self.count = record, count


def _kind_of(value: bytes, sequence: bool) -> int | None:
    """The kind of a feature's bytes, or of those of a list of them; None if none has values."""
    features = [content for _, content in examples.fields_in(value)] if sequence else [value]
    for each in features:
        for number, content in examples.fields_in(each):
            if number in _TYPES and content:
                return number
    return None


def _value_type(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def _flat(values: npt.NDArray[Any], ends: Int64, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_binary(_value_type(kind)):
        return pa.array(values)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def _column(kind: pa.DataType, values: pa.Array, counts: Int64, steps: Int64 | None) -> pa.Array:
    """A column of values one after the other. Raises _OtherNumberError."""
    if steps is not None:
        inner = kind.value_type
        if pa.types.is_list(inner):
            values = _listed(inner, values, counts)
        elif len(bad := np.flatnonzero(counts != 1)):
            record = int(np.searchsorted(np.cumsum(np.maximum(steps, 0)), bad[0], "right"))
            raise _OtherNumberError(record, int(counts[bad[0]]))
        return _listed(kind, values, steps)
    if pa.types.is_list(kind):
        return _listed(kind, values, counts)
    present = counts != examples.ABSENT
    if len(bad := np.flatnonzero(present & (counts != 1))):
        raise _OtherNumberError(int(bad[0]), int(counts[bad[0]]))
    if present.all():
        return values
    places = np.maximum(np.cumsum(present) - 1, 0)
    return values.take(pa.array(places, mask=~present))


def _listed(kind: pa.DataType, values: pa.Array, counts: Int64) -> pa.Array:
    """Lists of values one after the other; missing where the count is ABSENT."""
    offsets = np.concatenate([[0], np.cumsum(np.maximum(counts, 0))]).astype(np.int32)
    absent = counts == examples.ABSENT
    mask = pa.array(absent) if absent.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=mask)
