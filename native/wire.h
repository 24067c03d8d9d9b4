/* Frames and the fields of protobuf that they have, read without Python.
 *
 * Readers of a subset: whatever else protobuf allows, or a worker has no use for, is not refused
 * here but left to Python, which reads all of it and says what is wrong. So nothing here decides
 * that a request is bad. The frame is proto/wire/frames.py's.
 */
#ifndef SHOAL_WIRE_H
#define SHOAL_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    SHOAL_WIRE_TABLES = 256,   /* in a request, and so many arrays, which two for each may be */
    SHOAL_WIRE_ARRAYS = 2 * SHOAL_WIRE_TABLES,
    SHOAL_MESSAGE_PREFIX = 16, /* of a message of the data plane: proto/plane/message.py */
    SHOAL_FRAME_PREFIX = 8,    /* magic, and the length of the header */
    SHOAL_FRAME_ALIGNMENT = 8, /* of arrays, in a frame */
    SHOAL_IDENTITY_FIELDS = 3
};

/* DataType of shoal.proto. */
enum {
    SHOAL_WIRE_ANY = 0,
    SHOAL_WIRE_INT64 = 1,
    SHOAL_WIRE_FLOAT32 = 2,
    SHOAL_WIRE_BFLOAT16 = 3,
    SHOAL_WIRE_FLOAT16 = 4
};

/* Wire types of protobuf. */
enum {
    SHOAL_WIRE_VARINT = 0,
    SHOAL_WIRE_FIXED64 = 1,
    SHOAL_WIRE_BYTES = 2,
    SHOAL_WIRE_FIXED32 = 5
};

static const char shoal_frame_magic[4] = {'S', 'H', 'L', '1'};

/* What is left of a message. */
typedef struct {
    const uint8_t *at, *end;
} shoal_bytes;

static inline int shoal_read_number(shoal_bytes *in, int bits, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < bits && in->at < in->end; shift += 7) {
        const uint8_t byte = *in->at++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return shift < 63 || byte <= 1;
    }
    return 0;
}

static inline int shoal_read_varint(shoal_bytes *in, uint64_t *value) {
    return shoal_read_number(in, 64, value);
}

/* A tag or a length: protobuf refuses one of more than 5 bytes, even if they say little. */
static inline int shoal_read_short(shoal_bytes *in, uint64_t *value) {
    return shoal_read_number(in, 32, value);
}

static inline int shoal_read_bytes(shoal_bytes *in, shoal_bytes *found) {
    uint64_t size;
    if (!shoal_read_short(in, &size) || size > (uint64_t)(in->end - in->at)) return 0;
    *found = (shoal_bytes){in->at, in->at + size};
    in->at += size;
    return 1;
}

static inline int shoal_read_double(shoal_bytes *in, double *value) {
    if (in->end - in->at < (ptrdiff_t)sizeof *value) return 0;
    memcpy(value, in->at, sizeof *value);
    in->at += sizeof *value;
    return 1;
}

/* A field of a message, whose value is of one of the three types. */
typedef struct {
    unsigned number, wire;
    uint64_t value;
    double real;
    shoal_bytes bytes;
} shoal_field;

/* The next field; 0: its number is none of 1 to `last`, or one that came before, or its value is
 * of another type. */
static inline int shoal_read_field(shoal_bytes *in, unsigned last, unsigned *seen, shoal_field *field) {
    uint64_t tag;
    if (!shoal_read_short(in, &tag) || tag >> 3 > last || tag >> 3 == 0) return 0;
    field->number = (unsigned)(tag >> 3);
    field->wire = (unsigned)(tag & 7);
    if (*seen >> field->number & 1) return 0;
    *seen |= 1u << field->number;
    switch (field->wire) {
        case SHOAL_WIRE_VARINT: return shoal_read_varint(in, &field->value);
        case SHOAL_WIRE_FIXED64: return shoal_read_double(in, &field->real);
        case SHOAL_WIRE_BYTES: return shoal_read_bytes(in, &field->bytes);
        default: return 0;
    }
}

/* Who calls. */
typedef struct {
    int there;
    uint64_t worker, incarnation, sequence;
} shoal_identity;

static int shoal_read_identity(shoal_bytes in, shoal_identity *who) {
    uint64_t values[SHOAL_IDENTITY_FIELDS + 1] = {0};
    unsigned seen = 0;
    shoal_field field;
    while (in.at < in.end) {
        if (!shoal_read_field(&in, SHOAL_IDENTITY_FIELDS, &seen, &field) ||
            field.wire != SHOAL_WIRE_VARINT)
            return 0;
        values[field.number] = field.value;
    }
    *who = (shoal_identity){1, values[1], values[2], values[3]};
    return who->worker <= UINT32_MAX && who->incarnation <= UINT32_MAX;
}

/* Packed numbers of 32 bits, SHOAL_WIRE_TABLES at most. */
static int shoal_read_list(shoal_bytes in, uint32_t *list, int *count) {
    while (in.at < in.end) {
        uint64_t value;
        if (*count == SHOAL_WIRE_TABLES || !shoal_read_varint(&in, &value) || value > UINT32_MAX)
            return 0;
        list[(*count)++] = (uint32_t)value;
    }
    return 1;
}

/* An array of a frame: [shape[0]] or [shape[0], shape[1]]. */
typedef struct {
    uint64_t shape[2];
    const uint8_t *data;
    uint8_t type, dims, width; /* width: bytes of an element */
} shoal_array;

static int shoal_read_array(shoal_bytes in, shoal_array *array) {
    static const uint8_t widths[] = {0, 8, 4, 2, 2};
    unsigned seen = 0;
    shoal_field field;
    shoal_bytes shape = {NULL, NULL};
    uint64_t type = 0;
    while (in.at < in.end) {
        if (!shoal_read_field(&in, 2, &seen, &field)) return 0;
        if (field.wire != (field.number == 1 ? SHOAL_WIRE_VARINT : SHOAL_WIRE_BYTES)) return 0;
        if (field.number == 1) type = field.value;
        else shape = field.bytes;
    }
    if (type == SHOAL_WIRE_ANY || type > SHOAL_WIRE_FLOAT16) return 0;
    memset(array, 0, sizeof *array);
    array->type = (uint8_t)type;
    array->width = widths[type];
    while (shape.at < shape.end)
        if (array->dims == 2 || !shoal_read_varint(&shape, &array->shape[array->dims++])) return 0;
    return array->dims > 0;
}

/* The header of a frame that is aligned to its arrays; 0: it is none. */
static int shoal_frame_header(const uint8_t *frame, size_t size, shoal_bytes *header) {
    uint32_t length;
    if (size < SHOAL_FRAME_PREFIX || (uintptr_t)frame % SHOAL_FRAME_ALIGNMENT ||
        memcmp(frame, shoal_frame_magic, sizeof shoal_frame_magic))
        return 0;
    memcpy(&length, frame + sizeof shoal_frame_magic, sizeof length);
    if (length > size - SHOAL_FRAME_PREFIX) return 0;
    *header = (shoal_bytes){frame + SHOAL_FRAME_PREFIX, frame + SHOAL_FRAME_PREFIX + length};
    return 1;
}

/* Finds the arrays behind the header; 0: they are not the rest of the frame. */
static int shoal_place_arrays(const uint8_t *frame, size_t size, const uint8_t *from,
                              shoal_array *arrays, int count) {
    size_t position = (size_t)(from - frame);
    for (int k = 0; k < count; k++) {
        shoal_array *const a = &arrays[k];
        position += -position % SHOAL_FRAME_ALIGNMENT;
        if (position > size) return 0;
        const uint64_t room = (size - position) / a->width, columns = a->dims == 2 ? a->shape[1] : 1;
        if (columns && a->shape[0] > room / columns) return 0;
        a->data = frame + position;
        position += a->shape[0] * columns * a->width;
    }
    return position == size;
}

/* ---- writing ---- */

typedef struct {
    uint8_t *at;
} shoal_out;

static inline void shoal_put_varint(shoal_out *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *out->at++ = (uint8_t)value | 0x80;
    *out->at++ = (uint8_t)value;
}

/* A field of a number; none for 0, as protobuf has it. */
static inline void shoal_put_number(shoal_out *out, unsigned field, uint64_t value) {
    if (!value) return;
    shoal_put_varint(out, field << 3 | SHOAL_WIRE_VARINT);
    shoal_put_varint(out, value);
}

enum { SHOAL_PUT_ARRAY = 2 * 2 + 2 + 2 * 2 + 2 * 10 }; /* bytes that an ArraySpec takes at most */

/* A field of an ArraySpec. */
static void shoal_put_array(shoal_out *out, unsigned field, int type, const uint64_t *shape,
                            int dimensions) {
    uint8_t packed[2 * 10];
    shoal_out extents = {packed};
    for (int k = 0; k < dimensions; k++) shoal_put_varint(&extents, shape[k]);
    const uint64_t size = (uint64_t)(extents.at - packed);
    shoal_put_varint(out, field << 3 | SHOAL_WIRE_BYTES);
    *out->at++ = (uint8_t)(2 + 2 + size);
    *out->at++ = 1 << 3 | SHOAL_WIRE_VARINT;
    *out->at++ = (uint8_t)type;
    *out->at++ = 2 << 3 | SHOAL_WIRE_BYTES;
    *out->at++ = (uint8_t)size;
    memcpy(out->at, packed, size);
    out->at += size;
}

#endif
