/* The frame of a pull, read without Python: only what a worker sends.
 *
 * The frame is proto/frames.py's, its header a PullRequest of proto/shoal.proto. A reader of a
 * subset: whatever else protobuf allows, or a worker has no use for, is not refused here but left
 * to Python, which reads all of it and says what is wrong. So nothing here decides that a request
 * is bad.
 */
#ifndef SHOAL_PULL_REQUEST_H
#define SHOAL_PULL_REQUEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    SHOAL_PULL_TABLES = 256,    /* in a request, and so many arrays */
    SHOAL_FRAME_PREFIX = 8,     /* magic, and the length of the header */
    SHOAL_FRAME_ALIGNMENT = 8,  /* of arrays, in a frame */
    SHOAL_IDENTITY_FIELDS = 3,
    SHOAL_PULL_FIELDS = 9
};

/* DataType of shoal.proto. */
enum { SHOAL_WIRE_ANY = 0, SHOAL_WIRE_INT64 = 1, SHOAL_WIRE_FLOAT32 = 2, SHOAL_WIRE_BFLOAT16 = 3, SHOAL_WIRE_FLOAT16 = 4 };

static const char shoal_frame_magic[4] = {'S', 'H', 'L', '1'};

typedef struct {
    int has_caller;
    uint64_t worker, incarnation;
    int64_t routing_epoch, dense_version;
    uint64_t training, value_type;
    int tables, places, arrays;
    uint64_t table[SHOAL_PULL_TABLES];
    uint64_t place[SHOAL_PULL_TABLES];
    uint64_t count[SHOAL_PULL_TABLES];      /* ids in each array */
    const int64_t *ids[SHOAL_PULL_TABLES];  /* of each array, in the frame */
} shoal_pull;

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

/* The next field's number; 0: it is none of 1 to `last`, or one that came before. */
static inline unsigned shoal_read_field(shoal_bytes *in, unsigned last, unsigned *wire,
                                        unsigned *seen) {
    uint64_t tag;
    if (!shoal_read_short(in, &tag) || tag >> 3 > last || tag >> 3 == 0) return 0;
    const unsigned field = (unsigned)(tag >> 3);
    *wire = (unsigned)(tag & 7);
    if (*seen >> field & 1) return 0;
    *seen |= 1u << field;
    return field;
}

enum { SHOAL_WIRE_VARINT = 0, SHOAL_WIRE_BYTES = 2 };

static int shoal_read_identity(shoal_bytes in, shoal_pull *pull) {
    uint64_t values[SHOAL_IDENTITY_FIELDS + 1] = {0};
    unsigned seen = 0, wire;
    while (in.at < in.end) {
        const unsigned field = shoal_read_field(&in, SHOAL_IDENTITY_FIELDS, &wire, &seen);
        if (!field || wire != SHOAL_WIRE_VARINT || !shoal_read_varint(&in, &values[field])) return 0;
    }
    pull->has_caller = 1;
    pull->worker = values[1];
    pull->incarnation = values[2];
    return pull->worker <= UINT32_MAX && pull->incarnation <= UINT32_MAX;
}

static int shoal_read_list(shoal_bytes in, uint64_t *list, int *count) {
    while (in.at < in.end) {
        if (*count == SHOAL_PULL_TABLES || !shoal_read_varint(&in, &list[*count])) return 0;
        if (list[(*count)++] > UINT32_MAX) return 0;
    }
    return 1;
}

/* An array of ids: int64 [n]. */
static int shoal_read_array(shoal_bytes in, uint64_t *count) {
    uint64_t type = 0;
    unsigned seen = 0, wire;
    shoal_bytes shape = {NULL, NULL};
    while (in.at < in.end) {
        switch (shoal_read_field(&in, 2, &wire, &seen)) {
            case 1:
                if (wire != SHOAL_WIRE_VARINT || !shoal_read_varint(&in, &type)) return 0;
                break;
            case 2:
                if (wire != SHOAL_WIRE_BYTES || !shoal_read_bytes(&in, &shape)) return 0;
                break;
            default: return 0;
        }
    }
    return type == SHOAL_WIRE_INT64 && shape.at < shape.end && shoal_read_varint(&shape, count) &&
           shape.at == shape.end;
}

static int shoal_read_header(shoal_bytes in, shoal_pull *pull) {
    unsigned seen = 0, wire;
    while (in.at < in.end) {
        const unsigned field = shoal_read_field(&in, SHOAL_PULL_FIELDS, &wire, &seen);
        uint64_t value = 0;
        shoal_bytes part = {NULL, NULL};
        if (!field) return 0;
        if (wire == SHOAL_WIRE_VARINT ? !shoal_read_varint(&in, &value)
                                      : wire != SHOAL_WIRE_BYTES || !shoal_read_bytes(&in, &part))
            return 0;
        const int number = wire == SHOAL_WIRE_VARINT;
        switch (field) {
            case 1: if (number || !shoal_read_identity(part, pull)) return 0; break;
            case 2: if (!number) return 0; pull->routing_epoch = (int64_t)value; break;
            case 3: if (number || !shoal_read_list(part, pull->table, &pull->tables)) return 0; break;
            case 4: if (number || !shoal_read_list(part, pull->place, &pull->places)) return 0; break;
            case 5: if (!number) return 0; pull->dense_version = (int64_t)value; break;
            case 6: if (!number) return 0; pull->training = value; break;
            case 7: if (!number) return 0; pull->value_type = value; break;
            case 9:
                seen &= ~(1u << 9); /* there may be several */
                if (number || pull->arrays == SHOAL_PULL_TABLES ||
                    !shoal_read_array(part, &pull->count[pull->arrays++]))
                    return 0;
                break;
            default: return 0; /* 8, whole_updates: such a pull waits for updates */
        }
    }
    return 1;
}

/* Reads the frame of a pull, aligned to its arrays; 0: Python has to. Its ids stay where they are. */
static int shoal_read_pull(const uint8_t *frame, size_t size, shoal_pull *pull) {
    uint32_t length;
    memset(pull, 0, offsetof(shoal_pull, table));
    if (size < SHOAL_FRAME_PREFIX || (uintptr_t)frame % SHOAL_FRAME_ALIGNMENT ||
        memcmp(frame, shoal_frame_magic, sizeof shoal_frame_magic))
        return 0;
    memcpy(&length, frame + sizeof shoal_frame_magic, sizeof length);
    if (length > size - SHOAL_FRAME_PREFIX) return 0;
    size_t position = SHOAL_FRAME_PREFIX + length;
    if (!shoal_read_header((shoal_bytes){frame + SHOAL_FRAME_PREFIX, frame + position}, pull)) return 0;
    if (pull->tables != pull->places) return 0;
    for (int k = 0; k < pull->places; k++)
        if (pull->place[k] >= (uint64_t)pull->arrays) return 0;
    for (int k = 0; k < pull->arrays; k++) {
        position += -position % SHOAL_FRAME_ALIGNMENT;
        if (position > size || pull->count[k] > (size - position) / sizeof(int64_t)) return 0;
        pull->ids[k] = (const int64_t *)(frame + position);
        position += pull->count[k] * sizeof(int64_t);
    }
    return position == size && pull->training <= 1 && pull->value_type <= SHOAL_WIRE_FLOAT16 &&
           pull->value_type != SHOAL_WIRE_INT64;
}

#endif
