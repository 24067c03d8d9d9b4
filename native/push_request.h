/* The frame of a push, read without Python: a PushRequest of proto/shoal.proto, only what a worker
 * sends, and of that only what is to be applied at once.
 */
#ifndef SHOAL_PUSH_REQUEST_H
#define SHOAL_PUSH_REQUEST_H

#include <math.h>

#include "wire.h"

enum { SHOAL_PUSH_FIELDS = 17 };

static const int64_t SHOAL_MAX_TIME = (int64_t)1 << 62; /* MAX_TIME of ps/model/checks.py */

typedef struct {
    shoal_identity sender;
    int64_t routing_epoch, pulled_version, own_pushes, task, records_done;
    int64_t event_time; /* microseconds since 1970 */
    double learning_rate, pulled_time;
    int has_dense, modulate_rate, timed; /* timed: it has an event_time */
    int tables, places, scales, rates, arrays, distinct;
    uint32_t table[SHOAL_WIRE_TABLES];
    uint32_t place[SHOAL_WIRE_TABLES];
    float scale[SHOAL_WIRE_TABLES];
    double rate[SHOAL_WIRE_TABLES];
    shoal_array array[SHOAL_WIRE_ARRAYS]; /* the distinct ids; of each table; of the dense slices */
} shoal_push;

static int shoal_read_rates(shoal_bytes in, shoal_push *push) {
    while (in.at < in.end)
        if (push->rates == SHOAL_WIRE_TABLES || !shoal_read_double(&in, &push->rate[push->rates++]))
            return 0;
    return 1;
}

/* What gradients were divided by, so that none vanished as float16. */
static int shoal_read_scales(shoal_bytes in, shoal_push *push) {
    if ((in.end - in.at) % (ptrdiff_t)sizeof(float)) return 0;
    for (; in.at < in.end; in.at += sizeof(float)) {
        if (push->scales == SHOAL_WIRE_TABLES) return 0;
        float *const scale = &push->scale[push->scales++];
        memcpy(scale, in.at, sizeof *scale);
        if (!(*scale > 0.0f) || !isfinite(*scale)) return 0;
    }
    return 1;
}

static int shoal_read_flag(const shoal_field *field, int *flag) {
    *flag = field->value == 1;
    return field->wire == SHOAL_WIRE_VARINT && field->value <= 1;
}

/* A number of 0 to 2^63 - 1. */
static int shoal_read_count(const shoal_field *field, int64_t *count) {
    *count = (int64_t)field->value;
    return field->wire == SHOAL_WIRE_VARINT && *count >= 0;
}

static int shoal_read_push_header(shoal_bytes in, shoal_push *push) {
    unsigned seen = 0;
    shoal_field field;
    while (in.at < in.end) {
        if (!shoal_read_field(&in, SHOAL_PUSH_FIELDS, &seen, &field)) return 0;
        const int bytes = field.wire == SHOAL_WIRE_BYTES, real = field.wire == SHOAL_WIRE_FIXED64;
        switch (field.number) {
            case 1: if (!bytes || !shoal_read_identity(field.bytes, &push->sender)) return 0; break;
            case 2: if (!shoal_read_count(&field, &push->routing_epoch)) return 0; break;
            case 3: if (!bytes || !shoal_read_list(field.bytes, push->table, &push->tables)) return 0; break;
            case 4: if (!bytes || !shoal_read_list(field.bytes, push->place, &push->places)) return 0; break;
            case 5: if (!bytes || !shoal_read_scales(field.bytes, push)) return 0; break;
            case 6: if (!shoal_read_flag(&field, &push->has_dense)) return 0; break;
            case 7: if (!real) return 0; push->learning_rate = field.real; break;
            case 8: if (!shoal_read_flag(&field, &push->modulate_rate)) return 0; break;
            case 9: if (!shoal_read_count(&field, &push->pulled_version)) return 0; break;
            case 10: if (!real) return 0; push->pulled_time = field.real; break;
            case 11: if (!shoal_read_count(&field, &push->own_pushes)) return 0; break;
            case 12: if (!shoal_read_count(&field, &push->task)) return 0; break;
            case 13: if (!shoal_read_count(&field, &push->records_done)) return 0; break;
            case 15:
                seen &= ~(1u << 15); /* there may be several */
                if (!bytes || push->arrays == SHOAL_WIRE_ARRAYS ||
                    !shoal_read_array(field.bytes, &push->array[push->arrays++]))
                    return 0;
                break;
            case 16: if (!bytes || !shoal_read_rates(field.bytes, push)) return 0; break;
            case 17:
                if (!shoal_read_count(&field, &push->event_time) || push->event_time >= SHOAL_MAX_TIME) return 0;
                push->timed = 1;
                break;
            default: return 0; /* 14, hold: of --sync */
        }
    }
    return push->sender.there;
}

/* Whether the tables are different ones, and each has its ids and a gradient for each of them. */
static int shoal_tables_agree(const shoal_push *push) {
    if (push->tables != push->places || push->distinct < 0) return 0;
    if (push->scales && push->scales != push->tables) return 0;
    for (int k = 0; k < push->distinct; k++)
        if (push->array[k].type != SHOAL_WIRE_INT64 || push->array[k].dims != 1) return 0;
    for (int k = 0; k < push->tables; k++) {
        if (push->place[k] >= (uint32_t)push->distinct) return 0;
        const shoal_array *const rows = &push->array[push->distinct + k];
        if (rows->type == SHOAL_WIRE_INT64 || rows->dims != 2 ||
            rows->shape[0] != push->array[push->place[k]].shape[0])
            return 0;
        for (int j = 0; j < k; j++)
            if (push->table[j] == push->table[k]) return 0;
    }
    return 1;
}

/* Reads the frame of a push, aligned to its arrays; 0: Python has to. Its arrays stay where they
 * are. What is right in any model is checked. */
static int shoal_read_push(const uint8_t *frame, size_t size, shoal_push *push) {
    shoal_bytes header;
    memset(push, 0, offsetof(shoal_push, table));
    if (!shoal_frame_header(frame, size, &header) || !shoal_read_push_header(header, push)) return 0;
    push->distinct = push->arrays - push->tables - 2 * push->has_dense;
    if (!shoal_tables_agree(push)) return 0;
    for (int k = push->arrays - 2 * push->has_dense; k < push->arrays; k++)
        if (push->array[k].type != SHOAL_WIRE_FLOAT32 || push->array[k].dims != 1) return 0;
    if (push->sender.sequence < 1 || push->sender.sequence > INT64_MAX ||
        (uint64_t)push->own_pushes >= push->sender.sequence)
        return 0;
    return push->pulled_time >= 0.0 && isfinite(push->pulled_time) &&
           shoal_place_arrays(frame, size, header.end, push->array, push->arrays);
}

#endif
