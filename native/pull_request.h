/* The frame of a pull, read without Python: a PullRequest of proto/shoal.proto, only what a worker
 * sends.
 */
#ifndef SHOAL_PULL_REQUEST_H
#define SHOAL_PULL_REQUEST_H

#include "wire.h"

enum { SHOAL_PULL_FIELDS = 10 };

typedef struct {
    shoal_identity caller;
    int64_t routing_epoch, dense_version;
    int64_t after; /* the update that is waited for; with whole_updates */
    uint64_t training, value_type, whole_updates;
    int tables, places, arrays;
    uint32_t table[SHOAL_WIRE_TABLES];
    uint32_t place[SHOAL_WIRE_TABLES];
    shoal_array ids[SHOAL_WIRE_TABLES]; /* in the frame */
} shoal_pull;

static int shoal_read_pull_header(shoal_bytes in, shoal_pull *pull) {
    unsigned seen = 0;
    shoal_field field;
    while (in.at < in.end) {
        if (!shoal_read_field(&in, SHOAL_PULL_FIELDS, &seen, &field)) return 0;
        const int number = field.wire == SHOAL_WIRE_VARINT, bytes = field.wire == SHOAL_WIRE_BYTES;
        switch (field.number) {
            case 1: if (!bytes || !shoal_read_identity(field.bytes, &pull->caller)) return 0; break;
            case 2: if (!number) return 0; pull->routing_epoch = (int64_t)field.value; break;
            case 3: if (!bytes || !shoal_read_list(field.bytes, pull->table, &pull->tables)) return 0; break;
            case 4: if (!bytes || !shoal_read_list(field.bytes, pull->place, &pull->places)) return 0; break;
            case 5: if (!number) return 0; pull->dense_version = (int64_t)field.value; break;
            case 6: if (!number) return 0; pull->training = field.value; break;
            case 7: if (!number) return 0; pull->value_type = field.value; break;
            case 8: if (!number) return 0; pull->whole_updates = field.value; break;
            case 9:
                seen &= ~(1u << 9); /* there may be several */
                if (!bytes || pull->arrays == SHOAL_WIRE_TABLES ||
                    !shoal_read_array(field.bytes, &pull->ids[pull->arrays]) ||
                    pull->ids[pull->arrays].type != SHOAL_WIRE_INT64 ||
                    pull->ids[pull->arrays++].dims != 1)
                    return 0;
                break;
            case 10: if (!number) return 0; pull->after = (int64_t)field.value; break;
            default: return 0;
        }
    }
    return 1;
}

/* Reads the frame of a pull, aligned to its arrays; 0: Python has to. Its ids stay where they are. */
static int shoal_read_pull(const uint8_t *frame, size_t size, shoal_pull *pull) {
    shoal_bytes header;
    memset(pull, 0, offsetof(shoal_pull, table));
    if (!shoal_frame_header(frame, size, &header) || !shoal_read_pull_header(header, pull)) return 0;
    if (pull->tables != pull->places) return 0;
    for (int k = 0; k < pull->places; k++)
        if (pull->place[k] >= (uint32_t)pull->arrays) return 0;
    return shoal_place_arrays(frame, size, header.end, pull->ids, pull->arrays) &&
           pull->training <= 1 && pull->whole_updates <= 1 && pull->value_type <= SHOAL_WIRE_FLOAT16 &&
           pull->value_type != SHOAL_WIRE_INT64;
}

#endif
