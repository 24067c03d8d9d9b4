"""A model's moment: its step, its version and what changes with them, for Python (moments.h)."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import numpy as np

from shoal.native.arrays import require

from kernels cimport (
    SHOAL_DOUBLINGS,
    SHOAL_WORKERS,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    shoal_begin_step,
    shoal_count_version,
    shoal_dense,
    shoal_distribution,
    shoal_expect_sender,
    shoal_last_applied,
    shoal_moments,
    shoal_note_sender,
    shoal_stale,
    shoal_store,
    shoal_take_ticket,
    shoal_wants_dense,
    take,
)

NO_SENDERS = "no memory for the last push of a worker"


cdef distribution(const shoal_distribution *d):
    return [d.buckets[k] for k in range(SHOAL_DOUBLINGS)], d.count, d.sum, d.maximum


cdef class Moments:
    """Step, version, the last push of each worker, dense slices and how stale pushes were.

    tables: all RowStores of the model, whose eras follow the step. Any method by any thread.
    """

    cdef shoal_moments _moments
    cdef shoal_store **_stores
    cdef object _tables, _block, _block_before
    cdef dict _others

    def __cinit__(self, tables=()):
        memset(&self._moments, 0, sizeof(self._moments))
        pthread_mutex_init(&self._moments.lock, NULL)
        self._moments.staleness.unit, self._moments.age.unit = 1.0, 0.001
        self._tables = list(tables)
        self._others = {}  # senders beyond those that C knows
        self._stores = <shoal_store **>calloc(len(self._tables) + 1, sizeof(shoal_store *))
        if self._stores is NULL:
            raise MemoryError("no memory for the tables")
        for k, table in enumerate(self._tables):
            self._stores[k] = <shoal_store *><size_t>table.address
        self._moments.stores, self._moments.store_count = self._stores, len(self._tables)

    def __dealloc__(self):
        pthread_mutex_destroy(&self._moments.lock)
        free(self._moments.senders)
        free(self._moments.state)
        free(self._stores)

    @property
    def address(self):
        """The address of the C moments, for an extension that keeps this object meanwhile."""
        return <size_t>&self._moments

    @property
    def version(self):
        """Pushes applied."""
        cdef int64_t version
        take(&self._moments.lock)
        version = self._moments.version
        pthread_mutex_unlock(&self._moments.lock)
        return version

    @property
    def step(self):
        """The optimizers' last step."""
        cdef int64_t step
        take(&self._moments.lock)
        step = self._moments.step
        pthread_mutex_unlock(&self._moments.lock)
        return step

    def begin(self, block, state):
        """Take the first dense values, once.

        block: the trainable slice, a DenseBlock, used where it is. state: float32 [m], the other
        one, copied. Raises ValueError if there are some, MemoryError.
        """
        if self._block is not None:
            raise ValueError("there are dense values already")
        self._hold(block, state, 0)

    def replace(self, block, state, int64_t epoch):
        """Replace the dense slices, from the routing table of this epoch on.

        block, state: as in `begin`. No push may be under way; pulls that were routed by an earlier
        table may not have them. Raises ValueError if there are none yet, MemoryError.
        """
        if self._block is None:
            raise ValueError("there are no dense values yet")
        # An answer that is being made may copy from it still; two moves are far apart.
        self._block_before = self._block
        self._hold(block, state, epoch)

    cdef _hold(self, block, state, int64_t epoch):
        cdef const float[::1] other = require("state", state, np.float32, (None,))
        cdef size_t size = other.shape[0] * sizeof(float)
        cdef float *copy = <float *>malloc(size + 1)
        cdef float *before
        if copy is NULL:
            raise MemoryError("no memory for the dense values")
        if size:
            memcpy(copy, &other[0], size)
        self._block = block
        take(&self._moments.lock)
        before, self._moments.state = self._moments.state, copy
        self._moments.state_elements = other.shape[0]
        self._moments.dense = <shoal_dense *><size_t>block.address
        self._moments.dense_epoch = epoch
        pthread_mutex_unlock(&self._moments.lock)
        free(before)  # others copy it under the lock

    @property
    def dense_epoch(self):
        """The epoch of the routing table from which on these slices hold; 0: from the beginning."""
        cdef int64_t epoch
        take(&self._moments.lock)
        epoch = self._moments.dense_epoch
        pthread_mutex_unlock(&self._moments.lock)
        return epoch

    def state(self):
        """The non-trainable slice, float32 [m], copied; [0] before there are values."""
        return self.at(0, -1, -1)[2]

    def ticket(self, uint64_t worker, int64_t pulled_version):
        """The next push's step, and how many were applied since its pull.

        Raises MemoryError, before anything is changed.
        """
        cdef int64_t step = 0, staleness = 0
        cdef int taken
        with nogil:  # where an era begins it walks through all tables
            taken = shoal_take_ticket(
                &self._moments, worker, pulled_version, &step, &staleness
            )
        if not taken:
            raise MemoryError(NO_SENDERS)
        return step, staleness

    def next_step(self):
        """Another step of the optimizers, of no push."""
        cdef int64_t step
        with nogil:  # as `ticket`
            pthread_mutex_lock(&self._moments.lock)
            shoal_begin_step(&self._moments, self._moments.step + 1)
            step = self._moments.step
            pthread_mutex_unlock(&self._moments.lock)
        return step

    def reach(self, int64_t step):
        """Raise the last step to this one, unless it is beyond that already."""
        with nogil:  # as `ticket`
            pthread_mutex_lock(&self._moments.lock)
            if step > self._moments.step:
                shoal_begin_step(&self._moments, step)
            pthread_mutex_unlock(&self._moments.lock)

    def count(self, stale=(), change=None, int64_t others=0, sender=None):
        """Another version, of which all but the change of the non-trainable slice is done.

        stale: (staleness, seconds since the pull) of each gradient in it. change: float32 [m] to
        add to the non-trainable slice, divided by one more than `others`. sender: worker,
        incarnation and sequence of the push. Raises MemoryError.
        """
        cdef const float[::1] given
        cdef const float *added = NULL
        cdef float nothing = 0
        cdef uint64_t worker = 0, sequence = 0
        cdef int64_t incarnation = -1
        cdef int room = 1, sent = sender is not None, count = len(stale)
        cdef shoal_stale *counted = <shoal_stale *>calloc(count + 1, sizeof(shoal_stale))
        if counted is NULL:
            raise MemoryError("no memory to count a push")
        try:
            for k, (staleness, age) in enumerate(stale):
                counted[k].staleness, counted[k].age = staleness, age
            if sent:
                worker, incarnation, sequence = sender
            if change is not None:
                given = require("change", change, np.float32, (self._moments.state_elements,))
                added = &given[0] if given.shape[0] else &nothing
            take(&self._moments.lock)
            if sent:
                room = shoal_expect_sender(&self._moments, worker)
            if room:
                shoal_count_version(&self._moments, added, <float>(others + 1), counted, count)
                if worker >= SHOAL_WORKERS:
                    self._others[worker] = incarnation, sequence
                elif sent:
                    shoal_note_sender(&self._moments, worker, incarnation, sequence)
            pthread_mutex_unlock(&self._moments.lock)
        finally:
            free(counted)
        if not room:
            raise MemoryError(NO_SENDERS)

    def at(self, uint64_t worker, int64_t incarnation, int64_t dense_version):
        """The answer to a pull, of one moment: version, the caller's last push in it, the state.

        The sequence is 0 without one. The state is None unless the dense slices changed after
        `dense_version`; -1 always gets it, -2 never.
        """
        cdef int64_t version
        cdef uint64_t sequence
        cdef bint wanted = False
        cdef bint fits = False
        cdef float[::1] out
        while not fits:
            # Nothing may be made under the lock: another thread may run meanwhile, and want it.
            copied = np.empty(self._moments.state_elements, np.float32)
            out = copied
            take(&self._moments.lock)
            other = self._others.get(worker)
            fits = out.shape[0] == self._moments.state_elements
            version = self._moments.version
            sequence = shoal_last_applied(&self._moments, worker, incarnation)
            wanted = shoal_wants_dense(&self._moments, dense_version)
            if fits and wanted and out.shape[0]:
                memcpy(&out[0], self._moments.state, out.shape[0] * sizeof(float))
            pthread_mutex_unlock(&self._moments.lock)
        if other is not None and other[0] == incarnation:
            sequence = other[1]
        return version, sequence, copied if wanted else None

    def exceed(self, int64_t known):
        """Raise the version above one that a worker has seen, so it takes dense values anew."""
        take(&self._moments.lock)
        if known >= self._moments.dense_version:
            self._moments.version = max(self._moments.version, known) + 1
            self._moments.dense_version = self._moments.version
        pthread_mutex_unlock(&self._moments.lock)

    def restore(self, int64_t version, int64_t step, senders):
        """Restore version and step, and the incarnation and sequence of each worker's last push.

        Raises MemoryError.
        """
        cdef int room = 1
        with nogil:  # as `ticket`
            pthread_mutex_lock(&self._moments.lock)
            self._moments.version = self._moments.dense_version = version
            shoal_begin_step(&self._moments, step)
            pthread_mutex_unlock(&self._moments.lock)
        for worker, (incarnation, sequence) in senders.items():
            if worker >= SHOAL_WORKERS:
                self._others[worker] = incarnation, sequence
                continue
            take(&self._moments.lock)
            room = shoal_expect_sender(&self._moments, worker)
            if room:
                shoal_note_sender(&self._moments, worker, incarnation, sequence)
            pthread_mutex_unlock(&self._moments.lock)
            if not room:
                raise MemoryError(NO_SENDERS)

    def distributions(self):
        """The distributions of staleness in pushes and age in seconds, as in proto/values/distribution.py.

        Each: counts by bucket, count, sum and maximum.
        """
        cdef shoal_distribution staleness, age
        take(&self._moments.lock)
        staleness, age = self._moments.staleness, self._moments.age
        pthread_mutex_unlock(&self._moments.lock)
        return distribution(&staleness), distribution(&age)
