"""The pushes of one worker, as Python and what answers without Python know them (pushes.h)."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from kernels cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_trylock,
    pthread_mutex_unlock,
    shoal_push_record,
    take,
)


cdef class PushRecord:
    """The record that a server keeps of one worker's pushes, all its incarnations together.

    A context manager: entered by a thread, it is that thread's alone until it is left. Read
    and set the attributes below only within.

    incarnation: the process of the next four attributes; the newest that pushed.
    sequence: the number of its last push applied; 0 before the first. Numbers rise from 1.
    task, records_done: the task of that push, and how many of the task's records are in its
        pushes up to that one.
    pending: the number of its last push that is only held (synchronous training); 0 if none.
    fenced: the highest incarnation that is refused; -1 if none.
    """

    cdef shoal_push_record _record

    def __cinit__(self):
        memset(&self._record, 0, sizeof(self._record))
        pthread_mutex_init(&self._record.lock, NULL)
        self._record.fenced = -1

    def __dealloc__(self):
        pthread_mutex_destroy(&self._record.lock)

    def acquire(self, bint blocking=True):
        """Lock the record; returns False if it is locked and `blocking` is not set."""
        if not blocking:
            return pthread_mutex_trylock(&self._record.lock) == 0
        take(&self._record.lock)
        return True

    def release(self):
        """Let go of the lock."""
        pthread_mutex_unlock(&self._record.lock)

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *_):
        self.release()

    @property
    def address(self):
        """The address of the C record, for an extension that keeps this object meanwhile."""
        return <size_t>&self._record

    @property
    def incarnation(self):
        return self._record.incarnation

    @incarnation.setter
    def incarnation(self, int64_t value):
        self._record.incarnation = value

    @property
    def sequence(self):
        return self._record.sequence

    @sequence.setter
    def sequence(self, uint64_t value):
        self._record.sequence = value

    @property
    def task(self):
        return self._record.task

    @task.setter
    def task(self, int64_t value):
        self._record.task = value

    @property
    def records_done(self):
        return self._record.records_done

    @records_done.setter
    def records_done(self, int64_t value):
        self._record.records_done = value

    @property
    def pending(self):
        return self._record.pending

    @pending.setter
    def pending(self, uint64_t value):
        self._record.pending = value

    @property
    def fenced(self):
        return self._record.fenced

    @fenced.setter
    def fenced(self, int64_t value):
        self._record.fenced = value
