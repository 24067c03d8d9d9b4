"""A delta as arrays: of each table the rows that are set and the ids that are gone, dense values.

Owns that nothing of a delta is given before all of it was checked. A small one is then in memory;
a large one, such as most bases, is read again piece by piece, so that no reader needs room for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shoal.checkpoints.formats.manifests import MANIFEST, CheckpointError
from shoal.deltas import chain, shares
from shoal.deltas.errors import told
from shoal.deltas.schema import Flags, LiveModelManifest, slots_of
from shoal.deltas.shares import Page
from shoal.files.storage import Storage
from shoal.native.ids import slot_of
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import SLOTS

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

HELD_BYTES = 64 << 20
"""Of the files of a delta that is kept in memory once it was checked."""

VECTORS = {"trainable": "trainable", "state": "non_trainable"}
"""The field of a model's specification with the variables of a vector, by the kind of its pages."""


class Delta:
    """A delta, all of which was there and right when it was given.

    number: its own, from 1. base: it has all that there is, not only what changed. created:
    seconds since 1970. records: trained by then. checksum: of its manifest, by which the next
    delta names it. tables: by name, in the model's order.
    """

    def __init__(
        self, root: Storage, delta: chain.Delta, model: LiveModelManifest, spec: pb.ModelSpec
    ) -> None:
        """root: the folder of all deltas. Raises CheckpointError if a part of it is not right."""
        self._folder = root.child(chain.delta_name(delta.number))
        self.manifest, self.checksum = delta.manifest, delta.checksum
        self.model, self.spec = model, spec
        size = sum(share["file"]["bytes"] for share in self.manifest["shares"])
        self._held: list[Page] | None = [] if size <= HELD_BYTES else None
        for page in self._read():
            self._check(page)
            if self._held is not None:
                self._held.append(page)
        if self.base:
            for kind in VECTORS:
                if _joined(self._places(kind)) != _joined([(0, self._elements(kind))]):
                    raise CheckpointError(
                        f"{self._folder.path(MANIFEST)}: {kind}: not all elements, of a base"
                    )

    @property
    def number(self) -> int:
        """See the class."""
        return self.manifest["number"]

    @property
    def base(self) -> bool:
        """See the class."""
        return self.manifest["base"]

    @property
    def created(self) -> float:
        """See the class."""
        return self.manifest["created"]

    @property
    def records(self) -> int:
        """See the class."""
        return self.manifest["records"]

    @cached_property
    def tables(self) -> dict[str, TableDelta]:
        """See the class."""
        return {
            table.name: TableDelta(self, position, table.name, table.dim)
            for position, table in enumerate(self.spec.tables)
        }

    @cached_property
    def whole(self) -> Flags:
        """The routing slots of which it has all rows, bool [16384]: see TableDelta.stale."""
        flags = np.zeros(SLOTS, bool)
        for share in self.manifest["shares"]:
            flags |= slots_of("whole", share["whole"])
        return flags

    @cached_property
    def dense(self) -> dict[str, Float32]:
        """The dense values, float32, by variable name: of variables that it has whole."""
        found = {}
        for kind, field in VECTORS.items():
            covered = _joined(self._places(kind))
            vector = np.zeros(self._elements(kind), np.float32)
            for page in self.pages(kind):
                assert page.values is not None
                vector[page.first : page.first + len(page.values)] = page.values
            for each in getattr(self.spec, field):
                first, size = each.offset, math.prod(each.shape)
                if any(a <= first and first + size <= b for a, b in covered) or not size:
                    found[each.name] = vector[first : first + size].reshape(tuple(each.shape))
        return found

    def pages(self, *kinds: str, table: int | None = None) -> Iterator[Page]:
        """The pages of some kinds, of all tables or of one.

        Raises DamagedDeltaError or StorageError if a file of a large delta is not there any more
        as it was checked.
        """
        if self._held is None:
            with told():
                yield from self._read(kinds, table)
            return
        for page in self._held:
            if page.kind in kinds and table in (None, page.table):
                yield page

    def _read(self, kinds: Iterable[str] = (), table: int | None = None) -> Iterator[Page]:
        for share in self.manifest["shares"]:
            if kinds:
                yield from shares.read_some(
                    self._folder,
                    share["file"],
                    lambda page: page["kind"] in kinds and table in (None, page.get("table")),
                )
            else:
                yield from shares.read(self._folder, share["file"])

    def _elements(self, kind: str) -> int:
        return sum(math.prod(each.shape) for each in getattr(self.spec, VECTORS[kind]))

    def _places(self, kind: str) -> list[tuple[int, int]]:
        """The elements of a vector that there are, as first and end of each page."""
        return [
            (page["first"], page["first"] + page["rows"])
            for share in self.manifest["shares"]
            for page in share["file"]["pages"]
            if page["kind"] == kind
        ]

    def _check(self, page: Page) -> None:
        """Raises CheckpointError for a page that does not fit the model."""
        problem = ""
        if page.kind in VECTORS:
            assert page.values is not None
            if page.first + len(page.values) > self._elements(page.kind):
                problem = f"elements beyond the {page.kind} vector"
        elif page.table >= len(self.spec.tables):
            problem = f"of table {page.table}, which the model does not have"
        elif page.values is not None:
            table = self.spec.tables[page.table]
            found = page.values.shape[1], page.value_dtype
            if found != (table.dim, table.value_dtype or "float32"):
                problem = f"rows of {found[0]} {found[1]}, of table {table.name!r}"
        if problem:
            raise CheckpointError(f"{self._folder.location}: {problem}")


class TableDelta:
    """A table's part of a delta. Who applies it sets rows last: an id may be removed and set.

    name, dim: of the table.
    """

    def __init__(self, delta: Delta, position: int, name: str, dim: int) -> None:
        """position: of the table in the model."""
        self._delta, self._position = delta, position
        self.name, self.dim = name, dim

    @property
    def removed(self) -> Int64:
        """Ids whose rows are gone, int64 [n]; they may not have been known."""
        return np.concatenate(
            [
                np.zeros(0, np.int64),
                *(page.ids for page in self._pages("removed") if page.ids is not None),
            ]
        )

    def pieces(self) -> Iterator[tuple[Int64, Float32]]:
        """The rows that are set, piece by piece: ids int64 [n], rows float32 [n, dim].

        Raises as Delta.pages.
        """
        for page in self._pages("rows"):
            assert page.ids is not None
            assert page.values is not None
            yield page.ids, page.values

    @property
    def ids(self) -> Int64:
        """The ids of all rows that are set, int64 [n]."""
        return np.concatenate([np.zeros(0, np.int64), *(ids for ids, _ in self.pieces())])

    @property
    def rows(self) -> Float32:
        """The rows of `ids`, float32 [n, dim]."""
        empty = np.zeros((0, self.dim), np.float32)
        return np.concatenate([empty, *(rows for _, rows in self.pieces())])

    def stale(self, ids: Int64) -> Int64:
        """Ids of a reader whose rows are gone without being among `removed`, int64 [m].

        They are of slots of which the delta has all rows, and have none there. ids: int64 [n], what
        the reader has, all or some. It need not ask if no slot of Delta.whole is set.
        """
        ids = np.asarray(ids, np.int64)
        if not self._delta.whole.any():
            return ids[:0]
        found = ids[self._delta.whole[slot_of(ids)]]
        return found[~np.isin(found, self.ids)]

    def _pages(self, kind: str) -> Iterator[Page]:
        return self._delta.pages(kind, table=self._position)


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges, as first and end, with those joined that touch."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(places):
        if first == end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found
