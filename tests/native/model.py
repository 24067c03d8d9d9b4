"""A store with admission in plain Python: what the tests of native/ compare a store with.

The rows of the model are another store that admits at once and is given only the updates that are
to be applied, so the arithmetic is the same; which updates those are is decided here.
"""

import numpy as np

from shoal.native.choices import order_of
from shoal.native.rowstore import MANY_USES
from tests.native.strategies import store


def rows_of(pieces):
    """Rows as sorted arrays: ids, values, slots by name, versions, use counts."""
    pieces = list(pieces)
    if not pieces:
        return np.empty(0, np.int64), {}
    ids, values, slots, versions, uses = zip(*pieces, strict=True)
    order = np.argsort(np.concatenate(ids))
    columns = {"values": values, "versions": versions, "uses": uses}
    columns |= {name: [each[name] for each in slots] for name in slots[0]}
    return np.concatenate(ids)[order], {
        name: np.concatenate(parts)[order] for name, parts in columns.items()
    }


def assert_same_rows(found, expected):
    """Bit for bit, and each id once."""
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1].keys() == expected[1].keys()
    for name, column in expected[1].items():
        np.testing.assert_array_equal(found[1][name], column)


def counting_of(pieces):
    """Id to (uses, version) of what is counted; ids must be unique."""
    counting = {}
    for ids, versions, uses in pieces:
        for key, version, count in zip(ids.tolist(), versions.tolist(), uses.tolist(), strict=True):
            assert key not in counting
            counting[key] = count, version
    return counting


class Model:
    """What a store with these options holds, operation by operation."""

    def __init__(self, dim, optimizer, admit_after, **options):
        self._new = lambda: store(dim, optimizer, **options)
        self.table, self.admit_after = self._new(), admit_after
        self.counting, self.base = {}, 0

    def advance(self, step):
        """Uses of more than three eras ago are at the beginning of the oldest that is known."""
        self.table.advance(step)
        self.base = max(self.base, (step >> 30) - 3 << 30)
        self.counting = self.counted_since_base(self.counting)

    def counted_since_base(self, counting):
        """The same as `counting`, whose versions may be older than the base."""
        return {key: (uses, max(at, self.base)) for key, (uses, at) in counting.items()}

    def rows_since_base(self, rows):
        """The same as `rows` of `rows_of`, whose versions may be older than the base."""
        ids, columns = rows
        versions = {"versions": np.maximum(columns["versions"], self.base)} if len(ids) else {}
        return ids, columns | versions

    def update(self, ids, gradients, step):
        self.advance(step)
        admitted, applied = {}, []
        for place, key in enumerate(ids.tolist()):
            if key not in admitted and key not in self.table:
                uses, _ = self.counting.get(key, (0, 0))
                if uses + 1 < self.admit_after:
                    self.counting[key] = uses + 1, step
                    continue
                admitted[key] = uses
            applied.append(place)
        self._admit(admitted)
        self.table.update(ids[applied], gradients[applied], learning_rate=0.1, step=step)

    def _admit(self, uses):
        """Initial rows of these ids, with the use counts that they had."""
        ids = np.fromiter(uses, np.int64, len(uses))
        self.table.insert(ids)
        counts = np.fromiter(uses.values(), np.uint32, len(uses))
        versions = np.array([self.counting.pop(key, (0, 0))[1] for key in uses], np.int64)
        self.table.assign(ids, self.table.lookup(ids), versions=versions, use_counts=counts)

    def insert(self, ids):
        absent = dict.fromkeys(key for key in ids.tolist() if key not in self.table)
        self._admit({key: self.counting.get(key, (0, 0))[0] for key in absent})

    def assign(self, ids, values, numbers):
        self.insert(ids)
        self.table.assign(ids, values, None, *numbers)

    def assign_counting(self, ids, versions, uses):
        for key, version, count in zip(ids.tolist(), versions.tolist(), uses.tolist(), strict=True):
            if key not in self.table:
                self.counting[key] = min(count, MANY_USES), version

    def remove(self, ids):
        keys = dict.fromkeys(ids.tolist())
        counted = [key for key in keys if self.counting.pop(key, None)]
        return len(counted) + self.table.remove(np.array(list(keys), np.int64))

    def entries(self):
        """Of everything: (id, version, class of uses, whether it has a row)."""
        ids, columns = self.rows()
        numbers = (columns["versions"].tolist(), columns["uses"].tolist()) if len(ids) else ((), ())
        headers = [(*each, True) for each in zip(ids.tolist(), *numbers, strict=True)]
        headers += [(key, at, uses, False) for key, (uses, at) in self.counting.items()]
        return [(key, at, max(uses, 1).bit_length() - 1, row) for key, at, uses, row in headers]

    def expired(self, rows, counting):
        """Ids that are chosen, and those of them that have rows."""
        choices = {True: rows, False: counting}
        chosen = [
            (key, row)
            for key, version, use_class, row in self.entries()
            if (choice := choices[row]) is not None
            and (
                version < choice.sure[use_class]
                or (
                    version < choice.maybe[use_class]
                    and order_of(np.array([key])).item() < choice.below
                )
            )
        ]
        return {key for key, _ in chosen}, {key for key, row in chosen if row}

    def rows(self):
        return rows_of(self.table.export())
