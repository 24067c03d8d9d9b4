"""A job's rows as plain dicts, whose changes are published by hand: readers are held to them."""

from __future__ import annotations

import numpy as np

from shoal.deltas.shares import Page
from shoal.files.storage import LocalStorage
from shoal.native.ids import slot_of
from shoal.native.values import decode, encoded
from shoal.proto.values.routing import SLOTS
from tests.deltas.published import model_spec, write_delta, write_model

DIMS = (2, 3)
IDS = 60


class History:
    """Two tables, a and b, and a dense variable w, on two servers.

    rows: of each table, id -> row as bytes. dense: float32 [2]. deltas: all that were written.
    """

    def __init__(self, folder, seed=0, dtype="float32", job=None, dims=DIMS):
        self.root = LocalStorage(str(folder))
        self.numbers = np.random.default_rng(seed)
        self.dtype, self.dims = dtype, dims
        spec = model_spec(*dims)
        for table in spec.tables:
            table.value_dtype = "" if dtype == "float32" else dtype
        self.spec = spec
        self.model = write_model(self.root, spec, *([job] if job else []))
        self.rows = [{} for _ in dims]
        self.dense = np.zeros(2, np.float32)
        self.deltas = []
        self._forget_changes()
        self.left = np.arange(SLOTS) < SLOTS // 2

    def _forget_changes(self):
        self.set = [{} for _ in self.dims]
        self.removed = [set() for _ in self.dims]
        self.whole = np.zeros(SLOTS, bool)

    def push(self, n=10):
        """Set rows of some ids of each table."""
        for table, dim in enumerate(self.dims):
            ids = self.numbers.choice(IDS, n, replace=False)
            rows = self.numbers.normal(size=(n, dim)).astype(np.float32)
            rows = decode(encoded(rows, self.dtype))
            for each, row in zip(ids.tolist(), rows, strict=True):
                self.rows[table][each] = self.set[table][each] = row.tobytes()
        self.dense = self.numbers.normal(size=2).astype(np.float32)

    def sweep(self, n=15):
        """Remove rows, as a sweep does: the delta names them."""
        for table in range(len(self.dims)):
            for each in self.numbers.choice(IDS, n, replace=False).tolist():
                self.rows[table].pop(each, None)
                self.set[table].pop(each, None)
                self.removed[table].add(each)

    def lose(self):
        """Lose rows of some slots, as by a death: the delta has these slots whole, and no names."""
        slots = self.numbers.random(SLOTS) < 0.3
        for rows, changed in zip(self.rows, self.set, strict=True):
            for each in [each for each in rows if slots[slot_of(np.array([each]))[0]]]:
                if self.numbers.random() < 0.5:
                    del rows[each]
                    changed.pop(each, None)
        self.whole |= slots

    def publish(self, base=False, **changes):
        """Write the next delta."""
        if base or not self.deltas:
            self.whole[:] = True
        parts = []
        for owned in (self.left, ~self.left):
            pages = []
            for table, dim in enumerate(self.dims):
                told = {
                    each: row
                    for each, row in self.rows[table].items()
                    if each in self.set[table] or self.whole[slot_of(np.array([each]))[0]]
                }
                gone = self._owned(self.removed[table], owned)
                if gone.size:
                    pages.append(Page("removed", table, ids=gone))
                ids = self._owned(told, owned)
                for piece in np.array_split(ids, 2) if ids.size > 1 else [ids][: ids.size]:
                    rows = b"".join(told[each] for each in piece.tolist())
                    values = np.frombuffer(rows, np.float32).reshape(-1, dim)
                    page = Page("rows", table, ids=piece, values=values, value_dtype=self.dtype)
                    pages.append(page)
            at = 0 if owned is self.left else 1
            pages.append(Page("trainable", first=at, values=self.dense[at : at + 1]))
            parts.append((owned, owned & self.whole, pages))
        previous = self.deltas[-1].checksum if self.deltas else ""
        number = len(self.deltas) + 1
        bases = [each.number for each in self.deltas if each.manifest["base"]]
        changes = {"newest_base": number if self.whole.all() else bases[-1]} | changes
        self.deltas.append(write_delta(self.root, number, previous, self.model, parts, **changes))
        self._forget_changes()
        return self.deltas[-1]

    def _owned(self, ids, owned):
        found = np.array(sorted(ids), np.int64)
        return found[owned[slot_of(found)]]


def apply(rows, delta):
    """Apply a delta to plain dicts by table, as docs/guide/serve.md tells other stores to."""
    for name, table in delta.tables.items():
        mine = rows.setdefault(name, {})
        for each in table.removed.tolist():
            mine.pop(each, None)
        for ids, values in table.pieces():
            mine.update(zip(ids.tolist(), map(bytes, values), strict=True))
        for each in table.stale(np.array([*mine], np.int64)).tolist():
            del mine[each]
