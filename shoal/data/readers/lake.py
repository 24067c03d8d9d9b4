"""Tables of Delta Lake and Iceberg: which Parquet files are of a version, and what these lack.

The tables' own libraries tell that (the extra `lake`); the files are read as any others. A folder
with `_delta_log` is a Delta table. An Iceberg table is iceberg://CATALOG/NAMESPACE.TABLE, of a
catalog that pyiceberg is set up for, or its metadata file. `#version=N` names a version of the
former, `#snapshot=ID` one of the latter; the newest is read otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from shoal.data.places.storage import Storage, is_folder
from shoal.data.reader import Source
from shoal.data.readers.parquet_reader import ParquetReader
from shoal.data.shaped import ShapedReader
from shoal.errors import UnreadableError, UserError, without_secrets

ICEBERG = "iceberg://"

METADATA = ".metadata.json"

_VERSION = re.compile(r"^(.*)#(version|snapshot)=(\d+)$")

_ESCAPED = re.compile(rb"(\\u00[0-9a-fA-F]{2})+")

_UNREADABLE = ("deletionVectors", "columnMapping")
"""Features of Delta tables whose files are not all of what they say."""


@dataclass(frozen=True)
class Table:
    """A version of a table.

    files: names of its Parquet files. values: of each, the columns that the file has not, as the
    partition says. schema: all columns. partitions: those of them that are in no file. ids: of
    columns by name, where the files tell columns by these.
    """

    files: Sequence[str]
    values: Mapping[str, Mapping[str, Any]]
    schema: pa.Schema
    partitions: Sequence[str]
    ids: Mapping[str, int] = field(default_factory=dict)


def open_table(pattern: str, flag: str) -> Table | None:
    """The table that a flag's value names; None if it names none.

    Raises UserError if the library is not there, or the table cannot be read by its files alone.
    """
    place, kind, version = pattern, "", ""
    if match := _VERSION.match(pattern):
        place, kind, version = match[1], match[2], match[3]
    if place.startswith(ICEBERG) or place.endswith(METADATA):
        if kind == "version":
            raise UserError(f"{flag}: {pattern}: of an Iceberg table, give #snapshot=ID")
        return _iceberg(place, flag, int(version) if version else None)
    if any(each in place for each in "*?[") or not is_folder(place, "_delta_log"):
        return None
    if kind == "snapshot":
        raise UserError(f"{flag}: {pattern}: of a Delta table, give #version=N")
    return _delta(place, flag, int(version) if version else None)


def _missing(flag: str, place: str, package: str, error: ImportError) -> UserError:
    return UserError(
        f"{flag}: {place} is a table, which needs {package}; install it with: "
        f"pip install 'shoal[lake]' ({error})"
    )


def _delta(place: str, flag: str, version: int | None) -> Table:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise _missing(flag, place, "deltalake", error) from error
    try:
        table = DeltaTable(place, version=version)
        features = set(table.protocol().reader_features or ())
        mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        found = [name for name in _UNREADABLE if name in features]
        if mapped or found:
            raise UserError(
                f"{flag}: {place}: the Delta table uses {', '.join(found) or 'columnMapping'}, so "
                "that its files do not tell its records: write the table anew without"
            )
        schema = pa.schema(table.schema().to_arrow())
        partitions = list(table.metadata().partition_columns)
        actions = pa.table(table.get_add_actions(flatten=True))
        files = table.file_uris()
    except (DeltaError, OSError) as error:
        text = without_secrets(str(error).splitlines()[0])
        raise UnreadableError(
            f"{flag}: {place}: the Delta table cannot be read: {text}", may_be_mistake=True
        ) from error
    columns = {
        name: [_unescaped(each) for each in actions[f"partition.{name}"].to_pylist()]
        for name in partitions
    }
    values = {
        path: {name: columns[name][row] for name in partitions} for row, path in enumerate(files)
    }
    return Table(sorted(files), values, schema, partitions)


def _iceberg(place: str, flag: str, snapshot: int | None) -> Table:
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise _missing(flag, place, "pyiceberg", error) from error
    shown = without_secrets(place)
    try:
        if place.startswith(ICEBERG):
            catalog, _, name = place.removeprefix(ICEBERG).partition("/")
            if not catalog or not name:
                raise UserError(f"{flag}: {shown} must be iceberg://CATALOG/NAMESPACE.TABLE")
            table = load_catalog(catalog).load_table(name)
        else:
            table = StaticTable.from_metadata(place)
        if snapshot is not None and table.snapshot_by_id(snapshot) is None:
            raise UserError(f"{flag}: {shown}: the table has no snapshot {snapshot}")
        scan = table.scan(snapshot_id=snapshot)
        tasks = list(scan.plan_files())
        schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
        ids = {each.name: each.field_id for each in scan.projection().fields}
        defaults = [
            each.name for each in scan.projection().fields if each.initial_default is not None
        ]
    except UserError:
        raise
    except Exception as error:  # catalogs and their clients raise what they like
        text = without_secrets(f"{type(error).__name__}: {error}".splitlines()[0])
        raise UnreadableError(
            f"{flag}: {shown}: the Iceberg table cannot be read: {text}", may_be_mistake=True
        ) from error
    deleted = [task.file.file_path for task in tasks if task.delete_files]
    other = [task.file.file_path for task in tasks if task.file.file_format.value != "PARQUET"]
    if defaults or deleted or other:
        what = (
            f"column {defaults[0]!r} has a value of its own in files without it"
            if defaults
            else f"{deleted[0]} has deletions in another file"
            if deleted
            else f"{other[0]} is no Parquet file"
        )
        raise UserError(
            f"{flag}: {shown}: the files of the Iceberg table do not tell its records ({what}): "
            "rewrite its data files"
        )
    files = [task.file.file_path.removeprefix("file://") for task in tasks]
    return Table(sorted(files), {}, schema.remove_metadata(), (), ids)


class LakeReader(ShapedReader):
    """Reads the files of a table's version. What is told of a file has its partition's values."""

    def __init__(self, table: Table, pattern: str, flag: str, **options: Any) -> None:
        if not table.files:
            raise UserError(f"{flag}: {without_secrets(pattern)} holds no records")
        inside = pa.schema([each for each in table.schema if each.name not in table.partitions])
        storage = Storage(table.files[0], flag, names=table.files)
        inner = ParquetReader(pattern, flag=flag, storage=storage, types=inside, ids=table.ids)
        named = storage.listed
        self._partitions = {named.get(file, file): each for file, each in table.values.items()}
        fields = {name: table.schema.field(name) for name in table.partitions}
        super().__init__(
            inner, pattern, flag=flag, constants=fields, value_of=self._values_in, **options
        )

    def describe(self, name: str) -> Source:
        """See DataReader."""
        source = super().describe(name)
        self._values_in(name)
        return source

    def _values_in(self, source: str) -> Mapping[str, Any]:
        """The partition's values, also of a file that is not of the version that is here."""

        def here() -> pa.Table:
            values = self._partitions.get(source, {})
            return pa.table({"values": [json.dumps(values, default=_as_text)]})

        found = self._store.get("lake", source, self._inner.stamp(source), here)
        values: dict[str, Any] = json.loads(found["values"][0].as_py())
        return {name: _typed(each, self._constants[name].type) for name, each in values.items()}


def _unescaped(value: Any) -> Any:
    """A partition's value; bytes as what they are, and not as Delta Lake escapes them."""
    if isinstance(value, bytes) and _ESCAPED.fullmatch(value):
        return bytes.fromhex(value.replace(b"\\u00", b"").decode())
    return value


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """A value that JSON kept: dates and decimals as text, bytes in hexadecimal."""
    if isinstance(value, str) and pa.types.is_binary(kind):
        return bytes.fromhex(value)
    if isinstance(value, str) and not pa.types.is_string(kind):
        return pa.scalar(value).cast(kind).as_py()
    return value
