"""A folder of what is known of sources, for the jobs to come: --index-dir.

Its files are Arrow's, a row for each source that some worker has described. Anybody may remove any
of them: what is not there is found out again. A source that has another stamp now, or is read in
another way, is not known.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from shoal.config.url_variables import fill
from shoal.data.places.index_store import Known
from shoal.data.reader import Source
from shoal.errors import UserError, without_secrets

logger = logging.getLogger(__name__)

ENDING = ".described.arrow"

MOST_FILES = 64
"""From which on they are made one."""

SCHEMA = pa.schema(
    [
        ("form", pa.string()),
        ("name", pa.string()),
        ("stamp", pa.string()),
        ("records", pa.int64()),
        ("units", pa.list_(pa.int64())),
        ("index", pa.binary()),
    ]
)


class IndexFolder:
    """The indexes of sources in a folder, which is a path or a URL. flag: named in errors.

    Raises UserError for a URL of an unknown filesystem.
    """

    def __init__(self, place: str, flag: str) -> None:
        from fsspec.core import url_to_fs  # late: few jobs have such a folder

        try:
            self._fs, self._path = url_to_fs(fill(place, flag).url)
        except (ImportError, ValueError) as error:
            raise UserError(f"{flag}: {without_secrets(place)}: {error}") from error
        self._rows: dict[tuple[str, str], tuple[str, str, int]] | None = None
        self._opened: tuple[str, pa.Table] | None = None

    def _files(self) -> list[str]:
        self._fs.invalidate_cache()
        if not self._fs.isdir(self._path):
            return []
        return sorted(
            path for path in self._fs.ls(self._path, detail=False) if path.endswith(ENDING)
        )

    def _table(self, path: str, columns: Collection[str] | None = None) -> pa.Table:
        with self._fs.open(path, "rb") as file:
            options = pa.ipc.IpcReadOptions(
                included_fields=None
                if columns is None
                else [SCHEMA.get_field_index(name) for name in columns]
            )
            table = pa.ipc.open_file(pa.PythonFile(file, "r"), options=options).read_all()
        if columns is None and not table.schema.equals(SCHEMA):
            raise pa.ArrowInvalid("its columns are others")
        return table

    def _known(self) -> dict[tuple[str, str], tuple[str, str, int]]:
        """Stamp, file and row of each source, by form and name."""
        if self._rows is None:
            self._rows = {}
            try:
                files = self._files()
            except Exception as error:
                logger.warning("--index-dir cannot be read: %s", error)
                files = []
            for path in files:
                try:
                    table = self._table(path, ("form", "name", "stamp"))
                    columns = (table[name].to_pylist() for name in ("form", "name", "stamp"))
                    for row, (form, name, stamp) in enumerate(zip(*columns, strict=True)):
                        self._rows[form, name] = stamp, path, row
                except Exception as error:  # a filesystem's own, or another program's file
                    logger.warning("%s in --index-dir is not used: %s", path, error)
        return self._rows

    def has(self, form: str, name: str, stamp: str) -> bool:
        """True if the folder knows a source as it is now. form: how it is read."""
        return bool(stamp) and self._known().get((form, name), ("",))[0] == stamp

    def get(self, form: str, name: str, stamp: str) -> Known | None:
        """The folder's knowledge of a source as it is now; None if it has none."""
        if not self.has(form, name, stamp):
            return None
        _, path, row = self._known()[form, name]
        try:
            if self._opened is None or self._opened[0] != path:
                self._opened = path, self._table(path)
            found = self._opened[1].slice(row, 1).to_pylist()[0]
        except Exception as error:
            logger.warning("%s in --index-dir is not used: %s", path, error)
            return None
        if (found["name"], found["stamp"]) != (name, stamp):
            return None
        units = found["units"]
        pairs = tuple(zip(units[::2], units[1::2], strict=True))
        return Known(Source(name, found["records"], pairs), stamp, found["index"])

    def add(self, form: str, found: Collection[Known]) -> None:
        """Keep what was found out. What cannot be written is lost, and that is logged."""
        rows = [
            {
                "form": form,
                "name": known.source.name,
                "stamp": known.stamp,
                "records": known.source.records,
                "units": [number for unit in known.source.units for number in unit],
                "index": known.index,
            }
            for known in found
            if known.stamp
        ]
        if rows:
            self._write(pa.Table.from_pylist(rows, SCHEMA))

    def _write(self, table: pa.Table) -> bool:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
            writer.write_table(table, max_chunksize=1024)
        # In the order of their names, what was found out last comes last.
        name = f"{time.time():.3f}-{secrets.token_hex(4)}{ENDING}"
        name = f"{self._path.rstrip('/')}/{name}"
        try:
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.pipe_file(f"{name}.new", sink.getvalue().to_pybytes())
            self._fs.mv(f"{name}.new", name)
        except Exception as error:
            logger.warning("--index-dir cannot be written: %s", without_secrets(str(error)))
            return False
        return True

    def tidy(self) -> None:
        """Make one file of many. Done by one worker of a job, when it has listed the data."""
        try:
            files = self._files()
            if len(files) <= MOST_FILES:
                return
            newest: dict[tuple[str, str], dict[str, Any]] = {}
            for path in files:
                for row in self._table(path).to_pylist():
                    newest[row["form"], row["name"]] = row
            if self._write(pa.Table.from_pylist(list(newest.values()), SCHEMA)):
                for path in files:
                    self._fs.rm_file(path)
            self._rows = self._opened = None
        except Exception as error:
            logger.warning("--index-dir is left as it is: %s", without_secrets(str(error)))
