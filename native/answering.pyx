"""Pulls that are answered without Python: what they need to know, and the loop of a connection.

A thin shell around connection.h and answer.h. Python says what holds now, and is given back every
request that is not a plain pull. Knows no message but a pull and its answer.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import os

import numpy as np

from shoal.native.arrays import require

from kernels cimport (
    SHOAL_BROKEN,
    SHOAL_BUCKETS,
    SHOAL_CLOSED,
    SHOAL_FLAGS,
    SHOAL_FOR_PYTHON,
    SHOAL_LATE,
    SHOAL_SLOT_BITS,
    SHOAL_SLOT_BYTES,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_trylock,
    pthread_mutex_unlock,
    shoal_answerer,
    shoal_connection,
    shoal_moments,
    shoal_note_met,
    shoal_note_sender,
    shoal_serve,
    shoal_served,
    shoal_store,
)

FLAGS = SHOAL_FLAGS


cdef class Moments:
    """What a pull of one model is told beside the rows, each time of one moment."""

    cdef shoal_moments _moments
    cdef object _values

    def __cinit__(self):
        memset(&self._moments, 0, sizeof(self._moments))
        pthread_mutex_init(&self._moments.lock, NULL)

    def __dealloc__(self):
        pthread_mutex_destroy(&self._moments.lock)
        free(self._moments.senders)
        free(self._moments.state)

    def begin(self, values, state):
        """Have the first dense values, once.

        values: float32 [n], the trainable slice, read where it is from now on. state: float32 [m],
        the other one, copied. Raises ValueError if there are some, MemoryError.
        """
        cdef const float[::1] own = require("values", values, np.float32, (None,))
        cdef const float[::1] other = require("state", state, np.float32, (None,))
        cdef size_t size = other.shape[0] * sizeof(float)
        cdef float *copy
        if self._values is not None:
            raise ValueError("there are dense values already")
        copy = <float *>malloc(size + 1)
        if copy is NULL:
            raise MemoryError("no memory for the dense values")
        if size:
            memcpy(copy, &other[0], size)
        self._values = values
        with nogil:
            pthread_mutex_lock(&self._moments.lock)
            # Of none: something that is not NULL.
            self._moments.values = &own[0] if own.shape[0] else copy
            self._moments.elements = own.shape[0]
            self._moments.state, self._moments.state_elements = copy, other.shape[0]
            pthread_mutex_unlock(&self._moments.lock)

    def set(self, int64_t version, int64_t dense_version, sender=None, state=None):
        """Another moment.

        sender: worker, incarnation and sequence of its last push in the version, if there is
        another. state: as in `begin`, if it changed. Raises MemoryError.
        """
        cdef const float[::1] other
        cdef const float *changed = NULL
        cdef uint64_t worker = 0, sequence = 0
        cdef int64_t incarnation = -1
        cdef int noted = 1, sent = sender is not None
        if sent:
            worker, incarnation, sequence = sender
        if state is not None:
            other = require("state", state, np.float32, (self._moments.state_elements,))
            if other.shape[0]:
                changed = &other[0]
        # Who holds it never waits for Python's lock. To let go of that for so little, and to get it
        # back among many threads, would cost more than the whole.
        if pthread_mutex_trylock(&self._moments.lock) != 0:
            with nogil:
                pthread_mutex_lock(&self._moments.lock)
        self._moments.version, self._moments.dense_version = version, dense_version
        if sent:
            noted = shoal_note_sender(&self._moments, worker, incarnation, sequence)
        if changed is not NULL:
            memcpy(self._moments.state, changed,
                   <size_t>self._moments.state_elements * sizeof(float))
        pthread_mutex_unlock(&self._moments.lock)
        if not noted:
            raise MemoryError("no memory for the last push of a worker")


cdef class Answerer:
    """Answers the pulls of one server's connections, once it is opened and has a model.

    kind: of a pull, on the data plane. bounds: seconds, rising, between which the times of answers
    are counted. Any method by any thread.
    """

    cdef shoal_answerer _answerer
    cdef shoal_served *_tables
    cdef double *_bounds
    cdef int _kind
    cdef object _kept

    def __cinit__(self, int kind, bounds):
        memset(&self._answerer, 0, sizeof(self._answerer))
        pthread_mutex_init(&self._answerer.lock, NULL)
        if len(bounds) > SHOAL_BUCKETS:
            raise ValueError(f"at most {SHOAL_BUCKETS} bounds, not {len(bounds)}")
        self._kind = kind
        self._bounds = <double *>malloc((len(bounds) + 1) * sizeof(double))
        if self._bounds is NULL:
            raise MemoryError("no memory for the bounds of times")
        for k, bound in enumerate(bounds):
            self._bounds[k] = bound
        self._answerer.bounds, self._answerer.bound_count = self._bounds, len(bounds)

    def __dealloc__(self):
        pthread_mutex_destroy(&self._answerer.lock)
        free(self._answerer.met)
        free(self._tables)
        free(self._bounds)

    def open(self, bint opened=True):
        """Answer pulls from now on, or none."""
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            self._answerer.open = opened
            pthread_mutex_unlock(&self._answerer.lock)

    def route(self, int64_t epoch, own):
        """Answer pulls that were routed by a table of this epoch.

        own: bool [16384], the slots whose ids are this server's; None: all.
        """
        cdef uint8_t bits[SHOAL_SLOT_BYTES]
        cdef const uint8_t[::1] packed
        cdef int alone = own is None
        if not alone:
            require("own", own, np.bool_, (1 << SHOAL_SLOT_BITS,))
            packed = np.packbits(own, bitorder="little")
            memcpy(bits, &packed[0], SHOAL_SLOT_BYTES)
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            self._answerer.epoch, self._answerer.alone = epoch, alone
            if not alone:
                memcpy(self._answerer.own, bits, SHOAL_SLOT_BYTES)
            pthread_mutex_unlock(&self._answerer.lock)

    def forget_workers(self, bint again):
        """No worker has registered yet. again: and none is answered before it has."""
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            self._answerer.again = again
            for k in range(<int>self._answerer.known):
                self._answerer.met[k] = -1
            pthread_mutex_unlock(&self._answerer.lock)

    def meet(self, uint64_t worker, int64_t incarnation):
        """A worker has registered. Raises MemoryError."""
        cdef int noted
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            noted = shoal_note_met(&self._answerer, worker, incarnation)
            pthread_mutex_unlock(&self._answerer.lock)
        if not noted:
            raise MemoryError("no memory for a worker")

    def serve_model(self, tables, Moments moments not None):
        """Have the model, once.

        tables: of each, its RowStore, whether it has a vocabulary and whether it is frozen, as a
        TableSpec says. Raises ValueError if there is a model, MemoryError.
        """
        if self._kept is not None:
            raise ValueError("there is a model already")
        self._kept = list(tables), moments
        self._tables = <shoal_served *>calloc(len(self._kept[0]) + 1, sizeof(shoal_served))
        if self._tables is NULL:
            raise MemoryError("no memory for the tables")
        for k, (store, vocabulary, frozen) in enumerate(self._kept[0]):
            self._tables[k].store = <shoal_store *><size_t>store.address
            self._tables[k].vocabulary, self._tables[k].frozen = bool(vocabulary), bool(frozen)
        cdef int count = len(self._kept[0])
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            self._answerer.tables, self._answerer.table_count = self._tables, count
            self._answerer.moments = &moments._moments
            pthread_mutex_unlock(&self._answerer.lock)

    @property
    def durations(self):
        """Answers given, by how long each took to make, and the seconds of all.

        A number for each of the bounds, of those as long and longer than the bound before; and one
        for all longer ones.
        """
        cdef int64_t buckets[SHOAL_BUCKETS + 1]
        cdef double seconds
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            memcpy(buckets, self._answerer.buckets, sizeof(buckets))
            seconds = self._answerer.seconds
            pthread_mutex_unlock(&self._answerer.lock)
        return [buckets[k] for k in range(self._answerer.bound_count + 1)], seconds

    def serve(
        self, int socket, uint8_t[::1] buffer, begin, start, end, uint8_t[::1] flags,
        double part_seconds, str pause="",
    ):
        """Answer the pulls of a connection until something else is to be done.

        socket: its number; it blocks, and has limits for receiving and sending. buffer: for a
        request, of which those from `start` to `end` have come. begin: where the next one is to
        begin. flags: FLAGS bytes, of which the first is set while there is a request, and left so
        for one that is returned; the second is set by another thread to have this one return.
        part_seconds: for the rest of a request. pause: a file; while it is there every request is
        returned.

        Returns whether there is a request, or a part of one, and the new `start` and `end`; False
        if none came in time. Raises TimeoutError if the rest of one did not, or an answer was not
        taken; OSError if the connection is of no more use.
        """
        cdef shoal_connection connection
        cdef bytes path = os.fsencode(pause)
        cdef int result
        memset(&connection, 0, sizeof(connection))
        connection.socket = socket
        connection.size = buffer.shape[0]
        connection.begin, connection.start, connection.end = begin, start, end
        if not (begin < connection.size and start <= end <= connection.size):
            raise ValueError(f"no places of a buffer of {connection.size}: {begin}, {start}, {end}")
        if flags.shape[0] != SHOAL_FLAGS:
            raise ValueError(f"{SHOAL_FLAGS} flags are wanted, not {flags.shape[0]}")
        connection.buffer = &buffer[0]
        connection.flags = &flags[0]
        connection.pull = self._kind
        connection.part_seconds = part_seconds
        if path:
            connection.pause = path
        with nogil:
            result = shoal_serve(&self._answerer, &connection)
        if result == SHOAL_LATE:
            raise TimeoutError("the other end did not go on, or took nothing, in time")
        if result == SHOAL_CLOSED:
            raise ConnectionError("the connection was closed by the other end")
        if result == SHOAL_BROKEN:
            raise OSError(connection.error, os.strerror(connection.error))
        return result == SHOAL_FOR_PYTHON, connection.start, connection.end
