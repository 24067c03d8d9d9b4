"""Columns of serialised tf.train.Example and SequenceExample messages, those that are wanted.

Walks the bytes of protobuf's wire format itself: no message is built, and features that are not
wanted are stepped over. Kinds of a feature: 1 bytes, 2 floats, 3 integers, the fields of Feature.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

import numpy as np

BYTES, FLOATS, INTEGERS = 1, 2, 3
ABSENT = -1  # the length of a feature that a record has not

cdef enum:
    OK = 0
    DAMAGED = 1
    OTHER_KIND = 2
    NO_MEMORY = 3


cdef struct Buffer:
    uint8_t* data
    size_t size
    size_t room


cdef struct Column:
    const uint8_t* name
    size_t name_size
    int kind
    bint sequence
    bint seen          # in the record at hand
    Buffer values      # int64, float, or the bytes of all values
    Buffer ends        # of bytes: int64, where each value ends
    Buffer counts      # int64: values of each record; of a sequence, of each of its steps
    Buffer steps       # int64: of a sequence, steps of each record
    int64_t number     # values so far


cdef struct Part:
    const uint8_t* at
    const uint8_t* end


cdef int grow(Buffer* buffer, size_t more) noexcept nogil:
    cdef size_t room
    cdef void* moved
    if buffer.size + more > buffer.room:
        room = 2 * buffer.room + more + 64
        moved = realloc(buffer.data, room)
        if moved == NULL:
            return NO_MEMORY
        buffer.data = <uint8_t*>moved
        buffer.room = room
    return OK


cdef int append(Buffer* buffer, const void* data, size_t size) noexcept nogil:
    if grow(buffer, size):
        return NO_MEMORY
    memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return OK


cdef int append_number(Buffer* buffer, int64_t number) noexcept nogil:
    return append(buffer, &number, sizeof(int64_t))


cdef int varint(Part* part, uint64_t* value) noexcept nogil:
    cdef uint64_t found = 0
    cdef int shift = 0
    cdef uint8_t byte
    while part.at < part.end and shift < 64:
        byte = part.at[0]
        part.at += 1
        found |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            value[0] = found
            return OK
        shift += 7
    return DAMAGED


cdef int part_of(Part* part, Part* inside) noexcept nogil:
    """The bytes of a field of variable length, and on behind them."""
    cdef uint64_t size
    if varint(part, &size) or size > <uint64_t>(part.end - part.at):
        return DAMAGED
    inside.at = part.at
    inside.end = part.at + size
    part.at = inside.end
    return OK


cdef int step_over(Part* part, uint64_t tag) noexcept nogil:
    cdef uint64_t ignored
    cdef Part inside
    cdef int kind = tag & 7
    cdef int size
    if kind == 0:
        return varint(part, &ignored)
    if kind == 2:
        return part_of(part, &inside)
    if kind != 1 and kind != 5:
        return DAMAGED
    size = 8 if kind == 1 else 4
    if part.end - part.at < size:
        return DAMAGED
    part.at += size
    return OK


cdef int floats_of(Part* part, Column* column, int64_t* count) noexcept nogil:
    """The values of a FloatList, packed or not."""
    cdef uint64_t tag
    cdef Part inside
    cdef size_t size
    while part.at < part.end:
        if varint(part, &tag):
            return DAMAGED
        if tag == (1 << 3 | 2):
            if part_of(part, &inside):
                return DAMAGED
            size = inside.end - inside.at
            if size % 4:
                return DAMAGED
            if append(&column.values, inside.at, size):
                return NO_MEMORY
            count[0] += size // 4
        elif tag == (1 << 3 | 5):
            if part.end - part.at < 4:
                return DAMAGED
            if append(&column.values, part.at, 4):
                return NO_MEMORY
            part.at += 4
            count[0] += 1
        elif step_over(part, tag):
            return DAMAGED
    return OK


cdef int integers_of(Part* part, Column* column, int64_t* count) noexcept nogil:
    """The values of an Int64List, packed or not."""
    cdef uint64_t tag, value
    cdef Part inside
    while part.at < part.end:
        if varint(part, &tag):
            return DAMAGED
        if tag == (1 << 3 | 2):
            if part_of(part, &inside):
                return DAMAGED
            # A value has a byte at least.
            if grow(&column.values, 8 * (inside.end - inside.at)):
                return NO_MEMORY
            while inside.at < inside.end:
                if varint(&inside, &value):
                    return DAMAGED
                memcpy(column.values.data + column.values.size, &value, 8)
                column.values.size += 8
                count[0] += 1
        elif tag == (1 << 3 | 0):
            if varint(part, &value):
                return DAMAGED
            if append(&column.values, &value, 8):
                return NO_MEMORY
            count[0] += 1
        elif step_over(part, tag):
            return DAMAGED
    return OK


cdef int bytes_of(Part* part, Column* column, int64_t* count) noexcept nogil:
    """The values of a BytesList."""
    cdef uint64_t tag
    cdef Part inside
    while part.at < part.end:
        if varint(part, &tag):
            return DAMAGED
        if tag == (1 << 3 | 2):
            if part_of(part, &inside):
                return DAMAGED
            if append(&column.values, inside.at, inside.end - inside.at):
                return NO_MEMORY
            if append_number(&column.ends, column.values.size):
                return NO_MEMORY
            count[0] += 1
        elif step_over(part, tag):
            return DAMAGED
    return OK


cdef int feature(Part* part, Column* column) noexcept nogil:
    """The values of a Feature, as one more count."""
    cdef uint64_t tag
    cdef Part inside
    cdef int64_t count = 0
    cdef int result
    while part.at < part.end:
        if varint(part, &tag):
            return DAMAGED
        if tag & 7 != 2 or not 1 <= (tag >> 3) <= 3:
            if step_over(part, tag):
                return DAMAGED
            continue
        if part_of(part, &inside):
            return DAMAGED
        if <int>(tag >> 3) != column.kind:
            if inside.at == inside.end:
                continue  # none of another kind
            return OTHER_KIND
        if column.kind == 1:
            result = bytes_of(&inside, column, &count)
        elif column.kind == 2:
            result = floats_of(&inside, column, &count)
        else:
            result = integers_of(&inside, column, &count)
        if result:
            return result
    column.number += count
    return append_number(&column.counts, count)


cdef int feature_list(Part* part, Column* column) noexcept nogil:
    """The steps of a FeatureList."""
    cdef uint64_t tag
    cdef Part inside
    cdef int64_t count = 0
    cdef int result
    while part.at < part.end:
        if varint(part, &tag):
            return DAMAGED
        if tag == (1 << 3 | 2):
            if part_of(part, &inside):
                return DAMAGED
            result = feature(&inside, column)
            if result:
                return result
            count += 1
        elif step_over(part, tag):
            return DAMAGED
    return append_number(&column.steps, count)


cdef int entries(
    Part* part, Column* columns, int number, bint sequence, int* place, int* bad
) noexcept nogil:
    """The entries of a map of features, or of lists of them. place: where to begin to look."""
    cdef uint64_t tag
    cdef Part entry, key, value
    cdef int tried, at, result
    while part.at < part.end:
        if varint(part, &tag):
            return DAMAGED
        if tag != (1 << 3 | 2):
            if step_over(part, tag):
                return DAMAGED
            continue
        if part_of(part, &entry):
            return DAMAGED
        key.at = key.end = value.at = value.end = entry.at
        while entry.at < entry.end:
            if varint(&entry, &tag):
                return DAMAGED
            if tag == (1 << 3 | 2):
                if part_of(&entry, &key):
                    return DAMAGED
            elif tag == (2 << 3 | 2):
                if part_of(&entry, &value):
                    return DAMAGED
            elif step_over(&entry, tag):
                return DAMAGED
        # Messages of one program have their features in one order, most often.
        for tried in range(number):
            at = (place[0] + tried) % number
            if (
                columns[at].sequence == sequence
                and columns[at].name_size == <size_t>(key.end - key.at)
                and not memcmp(columns[at].name, key.at, columns[at].name_size)
            ):
                place[0] = at + 1
                if columns[at].seen:
                    return DAMAGED  # a key twice: the last would count, and none writes it so
                columns[at].seen = True
                bad[0] = at
                result = (feature_list if sequence else feature)(&value, &columns[at])
                if result:
                    return result
                break
    return OK


cdef int record_of(Part* part, Column* columns, int number, int* bad) noexcept nogil:
    """The features of an Example, or of a SequenceExample: its context and its lists."""
    cdef uint64_t tag
    cdef Part inside
    cdef int at, result, place = 0
    for at in range(number):
        columns[at].seen = False
    while part.at < part.end:
        if varint(part, &tag):
            return DAMAGED
        if tag == (1 << 3 | 2) or tag == (2 << 3 | 2):
            if part_of(part, &inside):
                return DAMAGED
            result = entries(&inside, columns, number, tag >> 3 == 2, &place, bad)
            if result:
                return result
        elif step_over(part, tag):
            return DAMAGED
    for at in range(number):
        if not columns[at].seen:
            result = append_number(
                &columns[at].steps if columns[at].sequence else &columns[at].counts, -1
            )
            if result:
                return result
    return OK


cdef object taken(Buffer* buffer, object dtype):
    """Copy the content of a buffer to an array of its own."""
    out = np.empty(buffer.size, np.uint8)
    cdef uint8_t[::1] view = out
    if buffer.size:
        memcpy(&view[0], buffer.data, buffer.size)
    return out.view(dtype)


def columns_of(records, wanted):
    """The values of features of serialised messages.

    records: a list of bytes. wanted: a list of (name, bytes; kind; whether it is a list of a
    SequenceExample's).
    Returns for each (values, ends, counts, steps): values float32 or int64, or uint8, of which
    `ends`, int64, tells where each ends; counts, int64, of each record, or of each step of the
    lists; steps, int64, of each record, empty if it is no list. ABSENT where a record lacks it.
    Raises ValueError (record, what is wrong) for a message that is damaged or of another kind.
    """
    cdef int number = len(wanted)
    cdef Column* columns = <Column*>realloc(NULL, (number or 1) * sizeof(Column))
    cdef Part part
    cdef int at, result = OK, bad = 0
    cdef bytes record, name
    cdef Py_ssize_t place
    if columns == NULL:
        raise MemoryError
    try:
        for at in range(number):
            columns[at] = Column(
                NULL, 0, 0, False, False,
                Buffer(NULL, 0, 0), Buffer(NULL, 0, 0), Buffer(NULL, 0, 0), Buffer(NULL, 0, 0), 0,
            )
        for at in range(number):
            name, kind, sequence = wanted[at]
            columns[at].name = <const uint8_t*>name
            columns[at].name_size = len(name)
            columns[at].kind = kind
            columns[at].sequence = sequence
        for place in range(len(records)):
            record = records[place]
            part.at = <const uint8_t*>record
            part.end = part.at + len(record)
            with nogil:
                result = record_of(&part, columns, number, &bad)
            if result == NO_MEMORY:
                raise MemoryError
            if result == OTHER_KIND:
                shown = wanted[bad][0].decode("utf-8", "backslashreplace")
                raise ValueError(place, f"feature {shown!r} is of another type than before")
            if result:
                raise ValueError(place, "it is no message of this kind, or damaged")
        return [
            (
                taken(
                    &columns[at].values,
                    {BYTES: np.uint8, FLOATS: np.float32, INTEGERS: np.int64}[wanted[at][1]],
                ),
                taken(&columns[at].ends, np.int64),
                taken(&columns[at].counts, np.int64),
                taken(&columns[at].steps, np.int64),
            )
            for at in range(number)
        ]
    finally:
        for at in range(number):
            free(columns[at].values.data)
            free(columns[at].ends.data)
            free(columns[at].counts.data)
            free(columns[at].steps.data)
        free(columns)


cdef list entries_in(Part* part):
    """(key, bytes of the value) of the entries of a map. Raises ValueError."""
    cdef uint64_t tag
    cdef Part entry, inside
    found = []
    while part.at < part.end:
        if varint(part, &tag):
            raise ValueError("damaged")
        if tag != (1 << 3 | 2):
            if step_over(part, tag):
                raise ValueError("damaged")
            continue
        if part_of(part, &entry):
            raise ValueError("damaged")
        key, value = b"", b""
        while entry.at < entry.end:
            if varint(&entry, &tag):
                raise ValueError("damaged")
            if tag == (1 << 3 | 2) or tag == (2 << 3 | 2):
                if part_of(&entry, &inside):
                    raise ValueError("damaged")
                text = inside.at[: inside.end - inside.at]
                key, value = (text, value) if tag >> 3 == 1 else (key, text)
            elif step_over(&entry, tag):
                raise ValueError("damaged")
        found.append((key, value))
    return found


def fields_in(bytes message):
    """(number, bytes) of the fields of variable length of a message. Raises ValueError."""
    cdef Part part, inside
    cdef uint64_t tag
    part.at = <const uint8_t*>message
    part.end = part.at + len(message)
    found = []
    while part.at < part.end:
        if varint(&part, &tag):
            raise ValueError("damaged")
        if tag & 7 == 2:
            if part_of(&part, &inside):
                raise ValueError("damaged")
            found.append((int(tag >> 3), <bytes>inside.at[: inside.end - inside.at]))
        elif step_over(&part, tag):
            raise ValueError("damaged")
    return found


def features_in(bytes record):
    """The features of a message: a list of (name, bytes; whether it is a list; bytes of the value).

    Raises ValueError.
    """
    cdef Part part
    found = []
    for number, content in fields_in(record):
        if number in (1, 2):
            part.at = <const uint8_t*><bytes>content
            part.end = part.at + len(content)
            found += [(key, number == 2, value) for key, value in entries_in(&part)]
    return found
