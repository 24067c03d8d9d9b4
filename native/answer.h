/* The answer to a pull, made without Python, and the facts that it needs.
 *
 * The server's Python publishes the facts as it changes them, each set under one lock, so an answer
 * is one that Python could have given at a moment between the pull's coming and its answer. What is
 * not a plain answer (an id of another server, a worker that is not known, rows that travel in
 * several blocks) is not given here: Python answers or refuses, and nothing was done.
 */
#ifndef SHOAL_ANSWER_H
#define SHOAL_ANSWER_H

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "pull_request.h"
#include "traffic.h"

enum {
    SHOAL_WORKERS = 1 << 16,       /* whose pulls are answered here: those with an index below */
    SHOAL_ANSWER_BYTES = 512 << 10, /* of an answer; see BLOCK_BYTES in ps/rows.py */
    SHOAL_REPLY_HEADER = 64 + 32 * (SHOAL_PULL_TABLES + 2),
    SHOAL_MESSAGE_PREFIX = 16,     /* proto/plane/message.py */
    SHOAL_SLOT_BYTES = (1 << SHOAL_SLOT_BITS) / 8,
    SHOAL_BUCKETS = 32             /* of a histogram of durations, at most */
};

static inline double shoal_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) / 1e9; /* as time.monotonic */
}

/* ---- a model's moment: what a pull is told beside the rows ---- */

typedef struct {
    int64_t incarnation; /* of the last push in the version; -1: none */
    uint64_t sequence;
} shoal_sender;

typedef struct {
    pthread_mutex_t lock;
    int64_t version, dense_version;
    shoal_sender *senders; /* by worker */
    size_t known;
    const float *values; /* the trainable slice, as it is; NULL before the first values */
    int64_t elements;
    float *state; /* the non-trainable slice, of the same moment as the version */
    int64_t state_elements;
} shoal_moments;

/* Has a worker's last push in the version be this one. Lock held. Returns 0 without memory. */
static int shoal_note_sender(shoal_moments *m, uint64_t worker, int64_t incarnation, uint64_t sequence) {
    if (worker >= SHOAL_WORKERS) return 1; /* Python answers it */
    if (worker >= m->known) {
        size_t known = m->known ? m->known : 16;
        while (known <= worker) known *= 2;
        shoal_sender *senders = realloc(m->senders, known * sizeof *senders);
        if (!senders) return 0;
        for (size_t k = m->known; k < known; k++) senders[k] = (shoal_sender){-1, 0};
        m->senders = senders;
        m->known = known;
    }
    m->senders[worker] = (shoal_sender){incarnation, sequence};
    return 1;
}

/* ---- what a server knows, and its counts ---- */

typedef struct {
    shoal_store *store;
    int vocabulary, frozen; /* as in TableSpec */
} shoal_served;

typedef struct {
    pthread_mutex_t lock;
    int open;
    int again;     /* only workers that have registered are answered */
    int64_t *met;  /* by worker, the newest incarnation that has; -1: none */
    size_t known;
    int64_t epoch; /* of the routing table */
    int alone;     /* every id is this server's */
    uint8_t own[SHOAL_SLOT_BYTES]; /* a bit a slot */
    const shoal_served *tables;    /* once there: for good */
    int table_count;
    shoal_moments *moments;
    const double *bounds; /* of durations, seconds; for good */
    int bound_count;
    int64_t buckets[SHOAL_BUCKETS + 1];
    double seconds;
} shoal_answerer;

static int shoal_note_met(shoal_answerer *a, uint64_t worker, int64_t incarnation) {
    if (worker >= SHOAL_WORKERS) return 1; /* Python answers it */
    if (worker >= a->known) {
        size_t known = a->known ? a->known : 16;
        while (known <= worker) known *= 2;
        int64_t *met = realloc(a->met, known * sizeof *met);
        if (!met) return 0;
        for (size_t k = a->known; k < known; k++) met[k] = -1;
        a->met = met;
        a->known = known;
    }
    if (incarnation > a->met[worker]) a->met[worker] = incarnation;
    return 1;
}

static void shoal_count_answer(shoal_answerer *a, double seconds) {
    int bucket = 0;
    while (bucket < a->bound_count && a->bounds[bucket] < seconds) bucket++;
    pthread_mutex_lock(&a->lock);
    a->buckets[bucket]++;
    a->seconds += seconds;
    pthread_mutex_unlock(&a->lock);
}

/* ---- an answer ---- */

typedef struct {
    char *start; /* of memory, which holds a message of the data plane */
    size_t size;
} shoal_message;

typedef struct {
    uint8_t *at;
} shoal_out;

SHOAL_INLINE void shoal_put_varint(shoal_out *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *out->at++ = (uint8_t)value | 0x80;
    *out->at++ = (uint8_t)value;
}

static void shoal_put_array(shoal_out *out, int type, const uint64_t *shape, int dimensions) {
    uint8_t packed[2 * 10];
    shoal_out extents = {packed};
    for (int k = 0; k < dimensions; k++) shoal_put_varint(&extents, shape[k]);
    const uint64_t size = (uint64_t)(extents.at - packed);
    *out->at++ = 6 << 3 | SHOAL_WIRE_BYTES; /* PullReply.arrays */
    *out->at++ = (uint8_t)(2 + 2 + size);
    *out->at++ = 1 << 3 | SHOAL_WIRE_VARINT;
    *out->at++ = (uint8_t)type;
    *out->at++ = 2 << 3 | SHOAL_WIRE_BYTES;
    *out->at++ = (uint8_t)size;
    memcpy(out->at, packed, size);
    out->at += size;
}

typedef struct {
    int64_t version;
    uint64_t applied;
    int has_dense;
    const float *values;
    uint64_t elements, state_elements;
    float *state; /* a copy */
} shoal_moment;

/* As ServerModel.moment; 0: Python has to say it. A copy of the state is the caller's to free. */
static int shoal_take_moment(shoal_moments *m, const shoal_pull *pull, shoal_moment *found) {
    int taken = 1;
    const int64_t has = pull->dense_version;
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&m->lock);
    found->version = m->version;
    if (pull->worker < m->known && m->senders[pull->worker].incarnation == (int64_t)pull->incarnation)
        found->applied = m->senders[pull->worker].sequence;
    if (has != -2 && !m->values) taken = 0;
    else if (has != -2 && !(has != -1 && m->dense_version <= has && has <= m->version)) {
        const size_t bytes = (size_t)m->state_elements * sizeof(float);
        found->has_dense = 1;
        found->values = m->values;
        found->elements = (uint64_t)m->elements;
        found->state_elements = (uint64_t)m->state_elements;
        if (found->elements + found->state_elements > SHOAL_ANSWER_BYTES / sizeof(float) ||
            !(found->state = malloc(bytes ? bytes : 1)))
            taken = 0;
        else if (bytes) memcpy(found->state, m->state, bytes);
    }
    pthread_mutex_unlock(&m->lock);
    return taken;
}

static int shoal_is_own(const uint8_t *own, int64_t id) {
    const uint32_t slot = shoal_slot(shoal_mix64((uint64_t)id));
    return own[slot / 8] >> slot % 8 & 1;
}

/* Whether the server answers this pull; its tables and its moments. */
static int shoal_may_answer(shoal_answerer *a, const shoal_pull *pull, const shoal_served **tables,
                            shoal_moments **moments) {
    uint8_t own[SHOAL_SLOT_BYTES];
    int64_t met = -1;
    if (pull->worker >= SHOAL_WORKERS) return 0;
    pthread_mutex_lock(&a->lock);
    const int alone = a->alone, count = a->table_count;
    if (pull->worker < a->known) met = a->met[pull->worker];
    const int may = a->open && a->moments && pull->routing_epoch == a->epoch &&
                    (!a->again || !pull->has_caller || (int64_t)pull->incarnation <= met);
    if (!alone) memcpy(own, a->own, sizeof own);
    *tables = a->tables;
    *moments = a->moments;
    pthread_mutex_unlock(&a->lock);
    if (!may) return 0;
    for (int k = 0; k < pull->tables; k++)
        if (pull->table[k] >= (uint64_t)count) return 0;
    for (int k = 0; k < pull->arrays && !alone; k++)
        for (uint64_t i = 0; i < pull->count[k]; i++)
            if (!shoal_is_own(own, pull->ids[k][i])) return 0;
    return 1;
}

/* Writes rows of a table as they travel. scratch: for 16 bits, [n, dim]. 0: no memory. */
static int shoal_put_rows(const shoal_served *table, const int64_t *ids, uint64_t n, int training,
                          int type, float *scratch, char *out) {
    const int64_t values = (int64_t)n * table->store->dim;
    float *found = type == SHOAL_WIRE_FLOAT32 ? (float *)out : scratch;
    shoal_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.n = (int64_t)n;
    batch.ids = ids;
    batch.out = found;
    /* With admission an id without a row reads the same wherever it is read. */
    batch.use_default = table->store->admit_after > 1 ||
                        !(table->vocabulary || (training && !table->frozen));
    if (n && shoal_run(table->store, &batch) != SHOAL_OK) return 0;
    if (type == SHOAL_WIRE_BFLOAT16) shoal_encode_bfloat16(found, (uint16_t *)out, values);
    if (type == SHOAL_WIRE_FLOAT16) {
        /* As native/values.py: an infinity would ruin the row for good. */
        for (int64_t i = 0; i < values; i++) {
            const float high = found[i] > 65504.0f ? 65504.0f : found[i];
            found[i] = high < -65504.0f ? -65504.0f : high;
        }
        shoal_encode_float16(found, (uint16_t *)out, values);
    }
    return 1;
}

/* Fills in a message of the size that was computed. */
static int shoal_put_answer(const shoal_pull *pull, const shoal_served *tables,
                            const shoal_moment *moment, int type, float *scratch,
                            const shoal_out *header_end, const uint8_t *header, shoal_message *made) {
    const uint32_t length = (uint32_t)(header_end->at - header);
    const uint64_t announced = made->size - SHOAL_MESSAGE_PREFIX;
    const size_t width = type == SHOAL_WIRE_FLOAT32 ? 4 : 2;
    char *frame = made->start + SHOAL_MESSAGE_PREFIX;
    memcpy(made->start, "SHD1\100\0\0\0", 8); /* an ANSWER */
    memcpy(made->start + 8, &announced, 8);
    memcpy(frame, shoal_frame_magic, 4);
    memcpy(frame + 4, &length, 4);
    memcpy(frame + SHOAL_FRAME_PREFIX, header, length);
    size_t position = SHOAL_FRAME_PREFIX + length;
    for (int k = 0; k < pull->tables + 2 * moment->has_dense; k++) {
        for (; position % SHOAL_FRAME_ALIGNMENT; position++) frame[position] = 0;
        if (k < pull->tables) {
            const shoal_served *table = &tables[pull->table[k]];
            const uint64_t n = pull->count[pull->place[k]];
            if (!shoal_put_rows(table, pull->ids[pull->place[k]], n, (int)pull->training, type,
                                scratch, frame + position))
                return 0;
            position += n * (uint64_t)table->store->dim * width;
        } else if (k == pull->tables) {
            /* Element by element, as updates go on: see ServerModel. */
            shoal_read(frame + position, moment->values, moment->elements * 4);
            position += moment->elements * 4;
        } else {
            memcpy(frame + position, moment->state, moment->state_elements * 4);
            position += moment->state_elements * 4;
        }
    }
    return 1;
}

/* The header of the answer, and the size of the whole message; 0: it is for Python. */
static size_t shoal_plan_answer(const shoal_pull *pull, const shoal_served *tables,
                                const shoal_moment *moment, int type, shoal_out *out,
                                const uint8_t *header, uint64_t *largest) {
    const uint64_t width = type == SHOAL_WIRE_FLOAT32 ? 4 : 2;
    uint64_t sizes[SHOAL_PULL_TABLES + 2], bytes = 0;
    const double time = shoal_now();
    int count = 0;
    if (moment->version) {
        *out->at++ = 1 << 3 | SHOAL_WIRE_VARINT;
        shoal_put_varint(out, (uint64_t)moment->version);
    }
    if (moment->has_dense) {
        *out->at++ = 2 << 3 | SHOAL_WIRE_VARINT;
        *out->at++ = 1;
    }
    *out->at++ = 3 << 3 | 1; /* a double */
    memcpy(out->at, &time, sizeof time);
    out->at += sizeof time;
    if (moment->applied) {
        *out->at++ = 4 << 3 | SHOAL_WIRE_VARINT;
        shoal_put_varint(out, moment->applied);
    }
    for (int k = 0; k < pull->tables; k++) {
        const uint64_t n = pull->count[pull->place[k]];
        const uint64_t dim = (uint64_t)tables[pull->table[k]].store->dim;
        const uint64_t shape[2] = {n, dim};
        shoal_put_array(out, type, shape, 2);
        *largest = n * dim > *largest ? n * dim : *largest;
        sizes[count++] = n * dim * width;
    }
    if (moment->has_dense) {
        shoal_put_array(out, SHOAL_WIRE_FLOAT32, &moment->elements, 1);
        sizes[count++] = moment->elements * 4;
        shoal_put_array(out, SHOAL_WIRE_FLOAT32, &moment->state_elements, 1);
        sizes[count++] = moment->state_elements * 4;
    }
    bytes = SHOAL_FRAME_PREFIX + (uint64_t)(out->at - header);
    for (int k = 0; k < count; k++) {
        bytes += -bytes % SHOAL_FRAME_ALIGNMENT + sizes[k];
        if (bytes > SHOAL_ANSWER_BYTES) return 0;
    }
    return (size_t)bytes + SHOAL_MESSAGE_PREFIX;
}

/* Makes the answer to the frame of a pull; 0: it is for Python. The message is the caller's to
 * free. */
static int shoal_answer(shoal_answerer *a, const uint8_t *frame, size_t size, shoal_message *made) {
    shoal_pull pull;
    shoal_moment moment;
    shoal_moments *moments;
    const shoal_served *tables;
    uint8_t header[SHOAL_REPLY_HEADER];
    shoal_out end = {header};
    uint64_t largest = 0;
    const double began = shoal_now();
    made->start = NULL;
    if (!shoal_read_pull(frame, size, &pull) || !shoal_may_answer(a, &pull, &tables, &moments)) return 0;
    const int type = pull.value_type ? (int)pull.value_type : SHOAL_WIRE_FLOAT32;
    /* Before the rows: a push that lands in between makes the caller count one push too many as
     * missed, never one too few. */
    if (shoal_take_moment(moments, &pull, &moment) &&
        (made->size = shoal_plan_answer(&pull, tables, &moment, type, &end, header, &largest)))
        made->start = malloc(made->size);
    float *scratch = NULL;
    int done = made->start != NULL;
    if (done && type != SHOAL_WIRE_FLOAT32 && largest && !(scratch = malloc(largest * 4))) done = 0;
    if (done) done = shoal_put_answer(&pull, tables, &moment, type, scratch, &end, header, made);
    free(scratch);
    free(moment.state);
    if (done) {
        shoal_count_answer(a, shoal_now() - began);
        return 1;
    }
    free(made->start);
    made->start = NULL;
    return 0;
}

#endif
