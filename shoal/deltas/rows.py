"""The rows of a followed model: a store for each table, without optimizer slots, changed in place.

Owns the order in which a delta is applied. A row's version is the number of the delta that set it.
Whoever reads meanwhile meets a row as it was or as it is now, never half, and never a row as
missing that is there before and after. No delta needs room for another copy of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.base.words import near
from shoal.deltas.delta import Delta
from shoal.deltas.errors import DeltaError
from shoal.deltas.schema import LiveModelManifest, LiveTable
from shoal.errors import UserError
from shoal.native.choices import Choice
from shoal.native.ids import slot_of
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.native.strings import string_ids
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.missing_rows import missing_row

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

AT_ONCE = 4096
"""Ids that are set, looked at, or removed, between two chances for readers."""


class Table:
    """The rows of a table.

    store: of them, in the dtype of the job's. name, dim: of the table. reads: int64 [2], how many
    ids were looked up, and how many of them had no row.
    """

    def __init__(self, live: LiveTable, spec: pb.TableSpec) -> None:
        """Raises DeltaError for a table that this version cannot keep."""
        self.name, self.dim, self.vocabulary = live["name"], live["dim"], live["vocabulary"]
        self.default = np.array(live["default"], np.float32)
        self.missing = missing_row(spec, training=False)
        self.reads = np.zeros(2, np.int64)
        if self.missing == "initial":
            initializer = InitializerSpec.from_json(spec.initializer)
        elif (self.default == self.default[0]).all():
            initializer = InitializerSpec("constant", {"value": float(self.default[0])})
        else:
            raise DeltaError(
                f"table {self.name!r} has a default row of several values: follow it by a newer "
                "version of shoal"
            )
        self.store = RowStore(
            self.dim,
            OptimizerSpec("sgd"),
            initializer,
            spec.seed,
            value_dtype=spec.value_dtype or "float32",
            admit_after=spec.admit_after or 1,
        )

    def lookup(self, ids: Any) -> Float32:
        """The rows of ids, float32 [..., dim]. ids: integers or strings [...].

        An id without a row reads the default row; in a table with a vocabulary, its initial value,
        and zeros beyond that, as an export's tables say. Raises UserError for ids of another dtype.
        """
        wanted = np.asarray(ids)
        if wanted.size and wanted.dtype.kind in "OSU":
            wanted = string_ids(wanted)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise UserError(
                f"ids of table {self.name!r} must be integers or strings, not {wanted.dtype}"
            )
        flat = np.ascontiguousarray(wanted.reshape(-1).astype(np.int64))
        rows = self.store.lookup(flat, missing=self.missing, reads=self.reads)
        if self.vocabulary:
            rows[(flat < 0) | (flat >= self.vocabulary)] = 0
        return rows.reshape(*wanted.shape, self.dim)


class Rows:
    """The rows of a model's tables. tables: those that are kept, by name, in the model's order."""

    def __init__(
        self, model: LiveModelManifest, spec: pb.ModelSpec, only: Collection[str] = ()
    ) -> None:
        """only: names of the tables to keep; none: all of them.

        Raises UserError if there is no such table, DeltaError for one that this version cannot
        keep.
        """
        self._of = _identity(model, spec)
        known = [live["name"] for live in model["tables"]]
        for name in only:
            if name not in known:
                raise UserError(_no_table(name, known))
        self.tables = {
            live["name"]: Table(live, each)
            for live, each in zip(model["tables"], spec.tables, strict=True)
            if not only or live["name"] in only
        }
        self._of_position = {
            position: self.tables[name]
            for position, name in enumerate(known)
            if name in self.tables
        }

    def fits(self, model: LiveModelManifest, spec: pb.ModelSpec) -> bool:
        """True if another model has the same tables, so that its deltas can be applied here."""
        return self._of == _identity(model, spec)

    def __len__(self) -> int:
        """Rows of all tables."""
        return sum(len(each.store) for each in self.tables.values())

    def memory_bytes(self) -> int:
        """Bytes that the stores take."""
        return sum(each.store.memory_bytes() for each in self.tables.values())

    def table(self, name: str) -> Table:
        """The table of a name. Raises UserError if there is none."""
        if name not in self.tables:
            raise UserError(_no_table(name, self.tables))
        return self.tables[name]

    def apply(self, delta: Delta) -> None:
        """Make the rows those of a delta, which is the next one or a base.

        If this raises, the same delta is to be applied again, or a later base: DamagedDeltaError
        or StorageError if a file has changed since the delta was checked, MemoryError.
        """
        removed: dict[int, list[Int64]] = {position: [] for position in self._of_position}
        versions_of = np.full(AT_ONCE, delta.number, np.int64)
        for page in delta.pages("rows", "removed"):
            if page.table not in removed:
                continue
            assert page.ids is not None
            if page.kind == "removed":
                removed[page.table].append(page.ids)
                continue
            assert page.values is not None
            store = self._of_position[page.table].store
            for some in _parts(page.ids.size):
                ids, versions = page.ids[some], versions_of[: some.stop - some.start]
                store.assign(ids, page.values[some], versions=versions)
        # An id that was removed and came again is among the rows: by their versions these stay,
        # so rows can be set first, and nobody finds an id missing in between.
        old = Choice.older_than(delta.number)
        for position, table in self._of_position.items():
            for ids in removed[position]:
                for some in _parts(ids.size):
                    table.store.remove_chosen(ids[some], old, None)
            if delta.whole.any():
                _drop(table.store, delta, old)


def _drop(store: RowStore, delta: Delta, old: Choice) -> None:
    """Remove the rows of slots that a delta has whole, if it did not set them."""
    cursor: int | None = 0
    while cursor is not None:
        ids, cursor = store.collect(old, None, cursor, AT_ONCE)
        gone = ids[delta.whole[slot_of(ids)]]
        if gone.size:
            store.remove_chosen(gone, old, None)


def _no_table(name: str, known: Iterable[str]) -> str:
    known = [*known]
    return f"there is no table {name!r}{near(name, known)}; there are {', '.join(known)}"


def _parts(size: int) -> Iterator[slice]:
    for first in range(0, size, AT_ONCE):
        yield slice(first, min(first + AT_ONCE, size))


def _identity(model: LiveModelManifest, spec: pb.ModelSpec) -> list[Any]:
    """All by which a store of rows is made, of each table."""
    return [
        (
            *(live["name"], live["dim"], live["default"], live["vocabulary"]),
            *(each.initializer, each.seed, each.value_dtype, missing_row(each, training=False)),
        )
        for live, each in zip(model["tables"], spec.tables, strict=True)
    ]
