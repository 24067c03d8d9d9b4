"""The updates of --sync, which pulls see whole (whole.h)."""

cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memset

from kernels cimport (
    shoal_enter_reading,
    shoal_enter_writing,
    shoal_last_update,
    shoal_leave_reading,
    shoal_leave_writing,
    shoal_note_update,
    shoal_whole,
    shoal_whole_end,
    shoal_whole_init,
)


cdef class WholeUpdates:
    """Any number of readers, or one update, which goes before readers that come later.

    seconds: for which readers wait for an update that they name, at most. update: the last one that
    is applied; 0 for none. Set within `writing`, or before any pull.
    """

    cdef shoal_whole _whole

    def __cinit__(self, double seconds):
        memset(&self._whole, 0, sizeof(self._whole))
        if not shoal_whole_init(&self._whole, seconds):
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        shoal_whole_end(&self._whole)

    @property
    def address(self):
        """The address of the C struct, for an extension that keeps this object meanwhile."""
        return <size_t>&self._whole

    @property
    def update(self):
        return shoal_last_update(&self._whole)

    @update.setter
    def update(self, int64_t value):
        shoal_note_update(&self._whole, value)

    @property
    def claimed(self):
        """True while an update is applied, or waits for readers."""
        return bool(self._whole.writing)

    def reading(self, int64_t after=0):
        """A context that is entered while no update is under way, once this one is applied."""
        return _Entered(self, False, after)

    def writing(self):
        """A context that is entered while nobody else reads or writes."""
        return _Entered(self, True, 0)


@cython.final
cdef class _Entered:
    cdef WholeUpdates _of
    cdef bint _writes
    cdef int64_t _after

    def __cinit__(self, WholeUpdates of, bint writes, int64_t after):
        self._of, self._writes, self._after = of, writes, after

    def __enter__(self):
        cdef shoal_whole *whole = &self._of._whole
        with nogil:
            if self._writes:
                shoal_enter_writing(whole)
            else:
                shoal_enter_reading(whole, self._after)

    def __exit__(self, *_):
        if self._writes:
            shoal_leave_writing(&self._of._whole)
        else:
            shoal_leave_reading(&self._of._whole)
