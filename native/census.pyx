"""A count of what was last used before a step, as of one moment, for Python (census.h)."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

import numpy as np

from kernels cimport (
    SHOAL_AGE_CLASSES,
    SHOAL_ORDER_CLASSES,
    shoal_census,
    shoal_census_look,
    shoal_census_set,
    shoal_store,
)

ORDER_CLASSES = SHOAL_ORDER_CLASSES  # of ids, by the upper bits of their order
_classes = np.arange(SHOAL_AGE_CLASSES)
LEAST_AGES = np.where(
    _classes < 16, _classes, (16 + _classes % 16) << np.maximum(_classes // 16 - 1, 0)
)


@cython.no_gc_clear  # __dealloc__ needs the store that it keeps
cdef class Census:
    """The rows and counted ids of a RowStore that were last used before the step `end`, as of now.

    store: has one at a time. by_worth: the age of a row is divided by one more than the class of
    its uses, floor(log2(uses)). No push may be under way where it begins, looks on or ends; in
    between pushes go on, with steps from `end` on.
    """

    cdef shoal_census _census
    cdef shoal_store *_store
    cdef object _kept
    cdef int64_t[:, :, :, ::1] _counts

    def __cinit__(self, store, int64_t end, *, bint by_worth=False):
        counts = np.zeros((3, 2, SHOAL_AGE_CLASSES, SHOAL_ORDER_CLASSES), np.int64)
        self._kept = store, counts
        self._counts = counts
        self._census.end, self._census.by_worth, self._census.cursor = end, by_worth, 0
        self._census.seen = &self._counts[0, 0, 0, 0]
        self._census.left = &self._counts[1, 0, 0, 0]
        self._census.missed = &self._counts[2, 0, 0, 0]
        self._store = <shoal_store *><size_t>store.address
        with nogil:
            shoal_census_set(self._store, &self._census)

    def __dealloc__(self):
        self.end()

    def end(self):
        """Note no change any more; nothing if it has ended."""
        if self._store is not NULL:
            with nogil:
                shoal_census_set(self._store, NULL)
            self._store = NULL

    def look(self, uint64_t until):
        """Look on until soon behind a cursor, of which all are below 2^32. Not once it has ended."""
        if self._store is NULL:
            raise ValueError("the census has ended")
        with nogil:
            shoal_census_look(self._store, &self._census, until)

    def left(self):
        """Of what is counted here, what pushes have used since it began, as `counts`."""
        return self._kept[1][1].copy()

    def counts(self):
        """The counts so far: of the whole once it has looked at 2^32.

        Returns int64 [2, len(LEAST_AGES), ORDER_CLASSES]: of counted ids and of rows, by their age
        in steps to the last one before `end`, those of class c from LEAST_AGES[c] to below the next
        one; of each, by the order of the id (choices.py), a class for each so many-th of them all.
        """
        counts = self._kept[1]
        return counts[0] + counts[2]
