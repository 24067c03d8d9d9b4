/* The answer to a pull, made without Python.
 *
 * What is not a plain answer (an id of another server, a worker that is not known, rows that travel
 * in several blocks) is not given here: Python answers or refuses, and nothing was done.
 */
#ifndef SHOAL_ANSWER_H
#define SHOAL_ANSWER_H

#include "answerer.h"
#include "pull_request.h"

enum {
    SHOAL_REPLY_ARRAYS = 6, /* PullReply.arrays */
    SHOAL_ANSWER_BYTES = 512 << 10, /* of an answer; see BLOCK_BYTES in ps/model/rows.py */
    SHOAL_REPLY_HEADER = 64 + 32 * (SHOAL_WIRE_TABLES + 2)
};

typedef struct {
    int64_t version, update;
    uint64_t applied;
    int has_dense;
    const float *values;
    uint64_t elements, state_elements;
    float *state; /* a copy */
} shoal_moment;

/* Whether the dense slices fit into an answer, or are not asked for. */
static int shoal_dense_fits(shoal_moments *m, const shoal_pull *pull) {
    pthread_mutex_lock(&m->lock);
    const int64_t elements = m->dense ? m->dense->n + m->state_elements : 0;
    pthread_mutex_unlock(&m->lock);
    return pull->dense_version == -2 || elements <= SHOAL_ANSWER_BYTES / (int64_t)sizeof(float);
}

/* As ServerModel.moment; 0: Python has to say it. A copy of the state is the caller's to free. */
static int shoal_take_moment(shoal_moments *m, const shoal_pull *pull, shoal_moment *found) {
    int taken = 1;
    const int64_t has = pull->dense_version;
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&m->lock);
    found->version = m->version;
    found->applied = shoal_last_applied(m, pull->caller.worker, (int64_t)pull->caller.incarnation);
    if (has != -2 && (!m->dense || pull->routing_epoch < m->dense_epoch)) taken = 0;
    else if (shoal_wants_dense(m, has)) {
        const size_t bytes = (size_t)m->state_elements * sizeof(float);
        found->has_dense = 1;
        found->values = m->dense->values;
        found->elements = (uint64_t)m->dense->n;
        found->state_elements = (uint64_t)m->state_elements;
        if (!(found->state = malloc(bytes ? bytes : 1))) taken = 0;
        else if (bytes) memcpy(found->state, m->state, bytes);
    }
    pthread_mutex_unlock(&m->lock);
    return taken;
}

/* The type in which rows of a table travel. */
static inline int shoal_rows_travel(const shoal_pull *pull, const shoal_served *table) {
    static const int held[] = {
        [SHOAL_FLOAT32] = SHOAL_WIRE_FLOAT32,
        [SHOAL_BFLOAT16] = SHOAL_WIRE_BFLOAT16,
        [SHOAL_FLOAT16] = SHOAL_WIRE_FLOAT16,
    };
    return pull->value_type ? (int)pull->value_type : held[table->store->format];
}

static inline uint64_t shoal_wire_width(int type) { return type == SHOAL_WIRE_FLOAT32 ? 4 : 2; }

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
    batch.reads = table->reads;
    /* With admission an id without a row reads the same wherever it is read. */
    batch.use_default = table->store->admit_after > 1 ||
                        !(table->vocabulary || (training && !table->frozen));
    if (n && shoal_run(table->store, &batch) != SHOAL_OK) return 0;
    for (uint64_t i = 0; table->bound && i < n; i++)
        if (ids[i] < 0 || ids[i] >= table->bound)
            memset(found + i * (uint64_t)table->store->dim, 0, (size_t)table->store->dim * 4);
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
                            const shoal_moment *moment, float *scratch,
                            const shoal_out *header_end, const uint8_t *header, shoal_message *made) {
    char *frame = made->start + SHOAL_MESSAGE_PREFIX;
    size_t position = (size_t)(shoal_begin_answer(made, header, (uint32_t)(header_end->at - header)) - frame);
    for (int k = 0; k < pull->tables + 2 * moment->has_dense; k++) {
        for (; position % SHOAL_FRAME_ALIGNMENT; position++) frame[position] = 0;
        if (k < pull->tables) {
            const shoal_served *table = &tables[pull->table[k]];
            const shoal_array *ids = &pull->ids[pull->place[k]];
            const uint64_t n = ids->shape[0];
            const int type = shoal_rows_travel(pull, table);
            if (!shoal_put_rows(table, (const int64_t *)ids->data, n, (int)pull->training, type,
                                scratch, frame + position))
                return 0;
            position += n * (uint64_t)table->store->dim * shoal_wire_width(type);
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

/* The header of the answer, and the size of the whole message; 0: it is for Python. largest: values
 * of the largest table whose rows travel as 16 bits. */
static size_t shoal_plan_answer(const shoal_pull *pull, const shoal_served *tables,
                                const shoal_moment *moment, shoal_out *out,
                                const uint8_t *header, uint64_t *largest) {
    uint64_t sizes[SHOAL_WIRE_TABLES + 2], bytes = 0;
    const double time = shoal_now();
    int count = 0;
    shoal_put_number(out, 1, (uint64_t)moment->version);
    shoal_put_number(out, 2, (uint64_t)moment->has_dense);
    *out->at++ = 3 << 3 | SHOAL_WIRE_FIXED64;
    memcpy(out->at, &time, sizeof time);
    out->at += sizeof time;
    shoal_put_number(out, 4, moment->applied);
    shoal_put_number(out, 5, (uint64_t)moment->update);
    for (int k = 0; k < pull->tables; k++) {
        const uint64_t n = pull->ids[pull->place[k]].shape[0];
        const shoal_served *table = &tables[pull->table[k]];
        const uint64_t dim = (uint64_t)table->store->dim;
        const int type = shoal_rows_travel(pull, table);
        const uint64_t shape[2] = {n, dim};
        shoal_put_array(out, SHOAL_REPLY_ARRAYS, type, shape, 2);
        if (type != SHOAL_WIRE_FLOAT32 && n * dim > *largest) *largest = n * dim;
        sizes[count++] = n * dim * shoal_wire_width(type);
    }
    if (moment->has_dense) {
        shoal_put_array(out, SHOAL_REPLY_ARRAYS, SHOAL_WIRE_FLOAT32, &moment->elements, 1);
        sizes[count++] = moment->elements * 4;
        shoal_put_array(out, SHOAL_REPLY_ARRAYS, SHOAL_WIRE_FLOAT32, &moment->state_elements, 1);
        sizes[count++] = moment->state_elements * 4;
    }
    bytes = SHOAL_FRAME_PREFIX + (uint64_t)(out->at - header);
    for (int k = 0; k < count; k++) {
        bytes += -bytes % SHOAL_FRAME_ALIGNMENT + sizes[k];
        if (bytes > SHOAL_ANSWER_BYTES) return 0;
    }
    return (size_t)bytes + SHOAL_MESSAGE_PREFIX;
}

/* As shoal_answer, of a pull that was read, once it sees whole updates if it is to. */
static int shoal_make_answer(shoal_answerer *a, const shoal_pull *pull, const shoal_facts *facts,
                             shoal_message *made) {
    shoal_moment moment;
    uint8_t header[SHOAL_REPLY_HEADER];
    shoal_out end = {header};
    uint64_t largest = 0;
    const shoal_served *tables = facts->tables;
    /* Before the rows: a push that lands in between makes the caller count one push too many as
     * missed, never one too few. */
    if (shoal_take_moment(facts->moments, pull, &moment)) {
        if (a->whole) moment.update = shoal_last_update(a->whole);
        if ((made->size = shoal_plan_answer(pull, tables, &moment, &end, header, &largest)))
            made->start = malloc(made->size);
    }
    float *scratch = NULL;
    int done = made->start != NULL;
    if (done && largest && !(scratch = malloc(largest * 4))) done = 0;
    if (done) done = shoal_put_answer(pull, tables, &moment, scratch, &end, header, made);
    /* A newer table is set before rows of others' slots go: under the same one they were there. */
    if (done) done = shoal_routed_by(a, pull->routing_epoch);
    free(scratch);
    free(moment.state);
    if (!done) {
        free(made->start);
        made->start = NULL;
    }
    return done;
}

/* Makes the answer to the frame of a pull; 0: it is for Python. The message is the caller's to
 * free. speaker: see shoal_may_speak. */
static int shoal_answer(shoal_answerer *a, int64_t speaker, const uint8_t *frame, size_t size, shoal_message *made) {
    shoal_pull pull;
    shoal_facts facts;
    const double began = shoal_now();
    made->start = NULL;
    if (!shoal_read_pull(frame, size, &pull) || !shoal_may_speak(speaker, &pull.caller) ||
        !shoal_take_facts(a, &pull.caller, pull.routing_epoch, &facts) ||
        !shoal_all_here(&facts, pull.table, pull.tables, pull.ids, pull.arrays) ||
        !shoal_dense_fits(facts.moments, &pull) || (pull.whole_updates && !a->whole))
        return 0;
    if (pull.whole_updates) shoal_enter_reading(a->whole, pull.after);
    const int done = shoal_make_answer(a, &pull, &facts, made);
    if (pull.whole_updates) shoal_leave_reading(a->whole);
    if (!done) return 0;
    if (shoal_counts_load(a))
        for (int k = 0; k < pull.arrays; k++)
            shoal_note_load(a, (const int64_t *)pull.ids[k].data, pull.ids[k].shape[0]);
    shoal_count_answer(a, &a->pulled, shoal_now() - began);
    return 1;
}

#endif
