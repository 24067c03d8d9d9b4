"""What keeps pushes and sweeps apart, and the time of the event clock, for Python (between.h)."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kernels cimport (
    SHOAL_ENTERED,
    SHOAL_NO_TICKET,
    SHOAL_NO_TIME,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    shoal_await_open,
    shoal_between,
    shoal_cap,
    shoal_enter,
    shoal_go,
    shoal_leave,
    shoal_moments,
    shoal_number,
    shoal_open,
    shoal_set_number,
    shoal_store,
    take,
)

NEVER = (1 << 63) - 1


cdef class Between:
    """The way of pushes into a model some of whose tables are swept, and the event clock's time.

    moments: give tickets. tables: RowStores that have a cap. Without both it is the time alone. A
    context manager: entered once the way is open, and kept by its thread until it is left; within,
    `go` lets a push on its way. Any method by any thread; those that say so only within, or where
    no push may be under way.
    """

    cdef shoal_between _between
    cdef object _kept

    def __cinit__(self, moments=None, tables=()):
        memset(&self._between, 0, sizeof(self._between))
        pthread_mutex_init(&self._between.lock, NULL)
        pthread_cond_init(&self._between.opened, NULL)
        self._between.clock.now, self._between.due_from = SHOAL_NO_TIME, NEVER
        self._kept = moments, list(tables)
        if moments is not None:
            self._between.moments = <shoal_moments *><size_t>moments.address
        self._between.caps = <shoal_cap *>calloc(len(self._kept[1]) + 1, sizeof(shoal_cap))
        if self._between.caps is NULL:
            raise MemoryError("no memory for the caps of tables")
        for k, table in enumerate(self._kept[1]):
            self._between.caps[k].store = <shoal_store *><size_t>table.address
            self._between.caps[k].rows = self._between.caps[k].counting = NEVER
        self._between.cap_count = len(self._kept[1])

    def __dealloc__(self):
        pthread_cond_destroy(&self._between.opened)
        pthread_mutex_destroy(&self._between.lock)
        free(self._between.caps)

    @property
    def address(self):
        """The address of the C object, for an extension that keeps this one meanwhile."""
        return <size_t>&self._between

    @property
    def now(self):
        """The time of the clock, microseconds since 1970; None before there is one."""
        cdef int64_t now = shoal_number(&self._between.clock.now)
        return None if now == SHOAL_NO_TIME else now

    @now.setter
    def now(self, value):
        """Set it, within or where no push may be under way."""
        cdef int64_t now = SHOAL_NO_TIME if value is None else value
        shoal_set_number(&self._between.clock.now, now)

    @property
    def behind(self):
        """The number of pushes in a row that were more than a leap behind."""
        return shoal_number(&self._between.clock.behind)

    @behind.setter
    def behind(self, int64_t value):
        """Set it, as `now`."""
        shoal_set_number(&self._between.clock.behind, value)

    @property
    def closed(self):
        """True while no push may enter."""
        cdef int closed
        take(&self._between.lock)
        closed = self._between.closed
        pthread_mutex_unlock(&self._between.lock)
        return bool(closed)

    def say(self, *, int64_t until, int64_t leap, int64_t due_from, bint suspended):
        """Say which pushes are plain from now on; within, or where no push may be under way.

        until: microseconds since 1970, from which on a time is not plain. leap: microseconds beyond
        `now`, further than which it is not either; 0: however far. due_from: behind a push of this
        step, or of a later one, there is a part of a sweep to be done. suspended: none is for a cap.
        """
        self._between.clock.until, self._between.clock.leap = until, leap
        self._between.due_from, self._between.suspended = due_from, suspended

    def cap(self, caps):
        """Set the most rows and the most counted ids of each table, (int, int); as `say`."""
        for k, (rows, counting) in enumerate(caps):
            self._between.caps[k].rows, self._between.caps[k].counting = rows, counting

    def enter(self, uint64_t worker, int64_t pulled_version, time):
        """Let a plain push on its way as soon as that is open; returns its step and staleness.

        time: its event time, microseconds since 1970; None without one. Returns None where it is
        not plain, and Python has to. Otherwise `leave` ends it. Raises MemoryError. Both before
        anything is changed.
        """
        cdef int64_t step = 0, staleness = 0, at = 0
        cdef int timed = time is not None
        cdef int result
        if timed:
            at = time
        with nogil:
            result = shoal_enter(
                &self._between, worker, pulled_version, timed, at, &step, &staleness
            )
        if result == SHOAL_NO_TICKET:
            raise MemoryError("no memory for the last push of a worker")
        return (step, staleness) if result == SHOAL_ENTERED else None

    def __enter__(self):
        self.lock()
        with nogil:
            shoal_await_open(&self._between)
        return self

    def __exit__(self, *_):
        self.unlock()

    def lock(self):
        """Have no push enter or leave, whether the way is open or not."""
        take(&self._between.lock)

    def unlock(self):
        """Let them."""
        pthread_mutex_unlock(&self._between.lock)

    def go(self, int64_t step):
        """Let a push with the ticket of this step on its way; within. `leave` ends it."""
        shoal_go(&self._between, step)

    def leave(self, bint applied):
        """End what `enter` or `go` began; returns whether to do a part of a sweep, and then `open`.

        applied: False where the push failed: then a part waits for one that does not.
        """
        cdef int last
        with nogil:
            last = shoal_leave(&self._between, applied)
        return bool(last)

    def open(self):
        """Open the way again."""
        with nogil:
            shoal_open(&self._between)
