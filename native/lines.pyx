"""Lines that are not blank, counted and found in bytes.

A line ends behind a line feed, or where the bytes end. Blank is what `bytes.isspace` calls so.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr

cdef extern from "string.h" nogil:
    void* memrchr(const void*, int, size_t)


cdef bint blank(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end:
        if at[0] != c" " and not c"\t" <= at[0] <= c"\r":
            return False
        at += 1
    return True


cdef int64_t behind_lines(
    const uint8_t* begin, const uint8_t* end, int64_t records, int64_t* found
) noexcept nogil:
    """The offset behind the first `records` full lines; the end where there are fewer."""
    cdef const uint8_t* at = begin
    cdef const uint8_t* stop
    found[0] = 0
    while at < end and found[0] < records:
        stop = <const uint8_t*>memchr(at, c"\n", end - at)
        stop = end if stop == NULL else stop + 1
        if not blank(at, stop):
            found[0] += 1
        at = stop
    return at - begin


cdef int64_t before_lines(
    const uint8_t* begin, const uint8_t* end, int64_t records, int64_t* found
) noexcept nogil:
    """The offset where the last `records` full lines begin; 0 where there are fewer."""
    cdef const uint8_t* stop = end
    cdef const uint8_t* at
    found[0] = 0
    while stop > begin and found[0] < records:
        # The line feed that ends this line is not the one that ends the line before.
        at = <const uint8_t*>memrchr(begin, c"\n", stop - 1 - begin)
        at = begin if at == NULL else at + 1
        if not blank(at, stop):
            found[0] += 1
        stop = at
    return stop - begin


def full_lines(const uint8_t[::1] data not None):
    """The number of lines that are not blank.

    data: contiguous bytes.
    """
    cdef int64_t found = 0
    if data.shape[0]:
        with nogil:
            behind_lines(&data[0], &data[0] + data.shape[0], data.shape[0], &found)
    return found


def behind(const uint8_t[::1] data not None, int64_t records):
    """The byte at which the first `records` lines that are not blank have ended.

    data: contiguous bytes. Blank lines behind the last one are not passed; 0 records end at 0.

    Raises ValueError if there are fewer.
    """
    cdef int64_t found = 0, place = 0
    if data.shape[0] and records > 0:
        with nogil:
            place = behind_lines(&data[0], &data[0] + data.shape[0], records, &found)
    if found != records:
        raise ValueError(f"{records} lines were asked for, and there are {found}")
    return place


def before(const uint8_t[::1] data not None, int64_t records):
    """The byte at which the last `records` lines that are not blank begin.

    data: contiguous bytes; where they end, a line may lack its line feed. 0 records begin at the
    end.

    Raises ValueError if there are fewer.
    """
    cdef int64_t found = 0, place = data.shape[0]
    if data.shape[0] and records > 0:
        with nogil:
            place = before_lines(&data[0], &data[0] + data.shape[0], records, &found)
    if found != records:
        raise ValueError(f"{records} lines were asked for, and there are {found}")
    return place


cdef int64_t deeper_byte(const uint8_t* begin, const uint8_t* end, int64_t most) noexcept nogil:
    cdef const uint8_t* at = begin
    cdef int64_t depth = 0
    cdef bint text = False
    while at < end:
        if at[0] == c"\n":
            text = False
            depth = 0
        elif text:
            if at[0] == c"\\" and at + 1 < end and at[1] != c"\n":
                at += 1
            elif at[0] == c'"':
                text = False
        elif at[0] == c'"':
            text = True
        elif at[0] == c"[" or at[0] == c"{":
            depth += 1
            if depth > most:
                return at - begin
        elif at[0] == c"]" or at[0] == c"}":
            depth -= 1
        at += 1
    return -1


def deeper(const uint8_t[::1] data not None, int64_t most):
    """The byte of the first bracket that is within more than `most` - 1 others of its line.

    data: contiguous bytes, lines of JSON. -1 if there is none.
    """
    cdef int64_t place = -1
    if data.shape[0]:
        with nogil:
            place = deeper_byte(&data[0], &data[0] + data.shape[0], most)
    return place
