"""Pulls and pushes that are answered without Python: the facts, and the loop of a connection.

A thin shell around connection.h, answer.h and push.h. Python says what holds now, and is given back
every request that is not a plain one.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import math
import os

import numpy as np

from shoal.native.arrays import require

from kernels cimport (
    SHOAL_ANYBODY,
    SHOAL_BROKEN,
    SHOAL_BUCKETS,
    SHOAL_CLOSED,
    SHOAL_FLAGS,
    SHOAL_FOR_PYTHON,
    SHOAL_HALF_APPLIED,
    SHOAL_LATE,
    SHOAL_MESSAGE_PREFIX,
    SHOAL_PUSH_ANSWER,
    SHOAL_PUSH_APPLIED,
    SHOAL_PUSH_BROKEN,
    SHOAL_SLOT_BITS,
    SHOAL_SLOT_BYTES,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    shoal_answerer,
    shoal_apply_frame,
    shoal_between,
    shoal_connection,
    shoal_counts_load,
    shoal_durations,
    shoal_know_record,
    shoal_leave_from,
    shoal_message,
    shoal_moments,
    shoal_note_load,
    shoal_note_met,
    shoal_push_record,
    shoal_serve,
    shoal_set_epoch,
    shoal_served,
    shoal_step,
    shoal_store,
    shoal_take_pushes,
    shoal_tls,
    shoal_whole,
    take,
)

FLAGS = SHOAL_FLAGS
HALF_APPLIED = "a part of a push was applied: there was no memory for the rest"


cdef int append(
    void *context, const uint8_t *frame, size_t size, uint64_t worker, int64_t pulled_version,
    const int64_t *time, int64_t *step, int64_t *staleness, void **waiting,
) noexcept with gil:
    """Append a push to the log, as in shoal_log; context: an Answerer."""
    cdef Answerer answerer = <Answerer>context
    cdef object kept
    try:
        view = PyMemoryView_FromMemory(<char *>frame, size, PyBUF_READ)
        at = time[0] if time != NULL else None
        step[0], staleness[0], kept = answerer._log(view, worker, pulled_version, at)
    except BaseException:
        return 0  # Python says it, where it finds the same
    if kept is not None:
        Py_INCREF(kept)
        waiting[0] = <void *>kept
    return 1


cdef int kept(void *context, void *waiting) noexcept with gil:
    """Wait for a push, as in shoal_log; context: an Answerer. waiting: is called and released."""
    cdef Answerer answerer = <Answerer>context
    cdef object wait = <object>waiting
    Py_DECREF(wait)
    try:
        return 1 if wait() else 0
    except BaseException as error:
        answerer._failure = error
        return -1


cdef int sweep_part(void *context) noexcept with gil:
    """Do a part of a sweep, as in shoal_answerer; context: an Answerer."""
    cdef Answerer answerer = <Answerer>context
    try:
        return 1 if answerer._sweep() else 0
    except BaseException as error:
        answerer._failure = error
        return -1


cdef class Answerer:
    """Answers pulls and pushes of one server, once it is opened and has a model.

    pull, push: their kinds on the data plane. bounds: seconds, rising, between which the times of
    answers are counted. finite_only: leave pushes with a NaN or an infinity to Python. watched:
    files; while one of them is there, pushes are left to Python. broken: is called with an
    error where the model has a part of a push, and ends the process. updates: the WholeUpdates of
    --sync, whose pushes are left to Python; None: of another job. Any method by any thread.
    """

    cdef shoal_answerer _answerer
    cdef shoal_served *_tables
    cdef double *_bounds
    cdef const char **_watched
    cdef int _pull, _push
    cdef object _kept, _paths, _broken, _log, _sweep, _failure, _updates
    cdef list _records

    def __cinit__(
        self, int pull, int push, bounds, *, bint finite_only=True, watched=(), broken=None,
        updates=None,
    ):
        memset(&self._answerer, 0, sizeof(self._answerer))
        pthread_mutex_init(&self._answerer.lock, NULL)
        if len(bounds) > SHOAL_BUCKETS:
            raise ValueError(f"at most {SHOAL_BUCKETS} bounds, not {len(bounds)}")
        self._pull, self._push = pull, push
        self._answerer.finite_only = finite_only
        self._answerer.python_from = math.inf
        self._broken, self._updates = broken, updates
        if updates is not None:
            self._answerer.whole = <shoal_whole *><size_t>updates.address
        self._records = []
        self._paths = [os.fsencode(each) for each in watched]
        self._watched = <const char **>calloc(len(self._paths) + 1, sizeof(char *))
        if self._watched is NULL:
            raise MemoryError("no memory for the names of files")
        for k, path in enumerate(self._paths):
            self._watched[k] = <bytes>path
        self._answerer.watched = self._watched
        self._answerer.watched_count = len(self._paths)
        self._bounds = <double *>malloc((len(bounds) + 1) * sizeof(double))
        if self._bounds is NULL:
            raise MemoryError("no memory for the bounds of times")
        for k, bound in enumerate(bounds):
            self._bounds[k] = bound
        self._answerer.bounds, self._answerer.bound_count = self._bounds, len(bounds)

    def __dealloc__(self):
        pthread_mutex_destroy(&self._answerer.lock)
        free(self._answerer.met)
        free(self._answerer.records)
        free(self._watched)
        free(self._tables)
        free(self._bounds)

    def open(self, bint opened=True):
        """Answer requests from now on, or none."""
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            self._answerer.open = opened
            pthread_mutex_unlock(&self._answerer.lock)

    def route(self, int64_t epoch, own):
        """Answer requests that were routed by a table of this epoch.

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
            shoal_set_epoch(&self._answerer, epoch)
            self._answerer.alone = alone
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

    def know(self, uint64_t worker, record):
        """Pushes of a worker are noted in this PushRecord, for good. Raises MemoryError."""
        cdef shoal_push_record *address = <shoal_push_record *><size_t>record.address
        cdef int noted
        self._records.append(record)
        take(&self._answerer.lock)
        noted = shoal_know_record(&self._answerer, worker, address)
        pthread_mutex_unlock(&self._answerer.lock)
        if not noted:
            raise MemoryError("no memory for a worker")

    def take_pushes(self, bint taken):
        """Apply pushes, or none; who enters a PushRecord after that sees none begin."""
        shoal_take_pushes(&self._answerer, taken)

    def leave_from(self, double moment):
        """Leave pushes from then on to Python, until this is called again.

        moment: as time.monotonic, seconds.
        """
        shoal_leave_from(&self._answerer, moment)

    def serve_model(
        self, tables, moments, *, log=None, between=None, sweep=None, bounds=None, reads=None
    ):
        """Begin to serve the model, once.

        tables: for each, its RowStore, whether it has a vocabulary and whether it is frozen, as a
        TableSpec says. moments: of the same tables. log: sends a push on its way to the log, takes
        its ticket, and waits for nothing. It is called with the frame, its worker, the version of
        its pull and its event time or None, and returns step, staleness, and what waits until the
        push is kept: a function that returns whether pushes are taken still, or None. The frame is
        to be used no more once that has returned. If it raises, Python handles the push. between:
        the Between that pushes enter, which the log does where there is one. sweep: does a part of
        a sweep, opens it again and returns whether pushes are taken still. bounds: of each table,
        the id from which on all read zeros, and negative ones; 0: none does. reads: of each table
        int64 [2], to which the number of ids that are read, and of those without a row, is added.
        Raises ValueError if there is a model, MemoryError.
        """
        if self._kept is not None:
            raise ValueError("there is a model already")
        cdef int64_t[::1] counts
        self._kept = list(tables), moments, between, reads
        self._log, self._sweep = log, sweep
        self._tables = <shoal_served *>calloc(len(self._kept[0]) + 1, sizeof(shoal_served))
        if self._tables is NULL:
            raise MemoryError("no memory for the tables")
        for k, (store, vocabulary, frozen) in enumerate(self._kept[0]):
            self._tables[k].store = <shoal_store *><size_t>store.address
            self._tables[k].step = <const shoal_step *><size_t>store.step_address
            self._tables[k].vocabulary, self._tables[k].frozen = bool(vocabulary), bool(frozen)
            if bounds is not None:
                self._tables[k].bound = bounds[k]
            if reads is not None:
                counts = require("reads", reads[k], np.int64, (2,), writable=True)
                self._tables[k].reads = &counts[0]
        cdef shoal_moments *address = <shoal_moments *><size_t>moments.address
        cdef int count = len(self._kept[0])
        cdef bint logs = log is not None
        cdef shoal_between *way = NULL
        if between is not None:
            way = <shoal_between *><size_t>between.address
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            self._answerer.tables, self._answerer.table_count = self._tables, count
            self._answerer.moments = address
            self._answerer.between, self._answerer.sweep = way, &sweep_part
            self._answerer.context = <void *>self
            if logs:
                self._answerer.log.append, self._answerer.log.kept = append, kept
            pthread_mutex_unlock(&self._answerer.lock)

    def note_load(self, arrays):
        """Count a pull that Python answers by its slots. arrays: of its ids, int64 [n] each."""
        cdef const int64_t[::1] ids
        if not shoal_counts_load(&self._answerer):
            return
        for each in arrays:
            ids = require("ids", each, np.int64, (None,))
            if ids.shape[0]:
                with nogil:
                    shoal_note_load(&self._answerer, &ids[0], ids.shape[0])

    def loads(self):
        """Ids that pulls asked for, of each slot, uint32 [16384]: of one in LOAD_EVERY pulls."""
        counted = np.empty(1 << SHOAL_SLOT_BITS, np.uint32)
        cdef uint32_t[::1] out = counted
        memcpy(&out[0], self._answerer.loads, out.shape[0] * sizeof(uint32_t))
        return counted

    def forget_loads(self):
        """Count from now on."""
        memset(self._answerer.loads, 0, sizeof(self._answerer.loads))

    def durations(self, int kind):
        """Answers given to requests of a kind, by how long each took, and the seconds of all.

        A number for each of the bounds, of those as long and longer than the bound before; and one
        for all longer ones. Without those of `push`.
        """
        cdef shoal_durations found
        with nogil:
            pthread_mutex_lock(&self._answerer.lock)
            found = self._answerer.pushed if kind == self._push else self._answerer.pulled
            pthread_mutex_unlock(&self._answerer.lock)
        return [found.buckets[k] for k in range(self._answerer.bound_count + 1)], found.seconds

    def push(self, frame):
        """The frame of the answer to a push that came to Python, bytes; None: Python has to.

        frame: of a PushRequest, bytes or a memoryview. Is not counted among `durations`.
        """
        cdef const uint8_t[::1] given = frame
        cdef const uint8_t *start = NULL
        cdef size_t size = given.shape[0]
        cdef char answer[SHOAL_PUSH_ANSWER]
        cdef shoal_message made
        cdef shoal_push_record *broken = NULL
        cdef int result
        made.start, made.size = answer, 0
        if size:
            start = &given[0]
        with nogil:
            result = shoal_apply_frame(
                &self._answerer, SHOAL_ANYBODY, start, size, &made, &broken
            )
        if result == SHOAL_PUSH_BROKEN:
            self._end(broken)
        if result != SHOAL_PUSH_APPLIED:
            return None
        return answer[SHOAL_MESSAGE_PREFIX:made.size]

    cdef _end(self, shoal_push_record *record):
        """The model has a part of a push. What it held is locked until the process ends."""
        error = self._failure or MemoryError(HALF_APPLIED)
        try:
            if self._broken is not None:
                self._broken(error)
        finally:
            pthread_mutex_unlock(&record.lock)
        raise error

    def serve(
        self, int socket, uint8_t[::1] buffer, begin, start, end, uint8_t[::1] flags,
        double part_seconds, str pause="", secured=None, double answer_seconds=0,
    ):
        """Answer the requests of a connection until something else is to be done.

        socket: its number; it blocks, and has limits for receiving and sending, unless it is secured.
        secured: its Secured, by which it is read and written, and which knows for whom its requests
        may speak; answer_seconds: its limit for an answer of which nothing is taken. buffer: for a
        request, of which those from `start` to `end` have come. begin: where the next one is to
        begin. flags: FLAGS bytes, of which the first is set while there is a request, and left so
        for one that is returned; the second is set by another thread to have this one return.
        part_seconds: for the rest of a request. pause: a file; while it is there every request is
        returned.

        Returns whether there is a request, or a part of one, and the new `start` and `end`; False
        if none came in time. Raises TimeoutError if the rest of one did not, or an answer was not
        taken; OSError if the connection is of no more use; MemoryError if a push was applied in part.
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
        connection.pull, connection.push = self._pull, self._push
        connection.part_seconds = part_seconds
        if path:
            connection.pause = path
        if secured is not None:
            secured.take()
            connection.tls = <shoal_tls *><size_t>secured.address
            connection.tls.seconds = answer_seconds
        with nogil:
            result = shoal_serve(&self._answerer, &connection)
        if secured is not None:
            secured.give_back()
        if result == SHOAL_HALF_APPLIED:
            self._end(connection.broken)
        if result == SHOAL_LATE:
            raise TimeoutError("the other end did not go on, or took nothing, in time")
        if result == SHOAL_CLOSED:
            raise ConnectionError("the connection was closed by the other end")
        if result == SHOAL_BROKEN and secured is not None:
            raise secured.failure()
        if result == SHOAL_BROKEN:
            raise OSError(connection.error, os.strerror(connection.error))
        return result == SHOAL_FOR_PYTHON, connection.start, connection.end
