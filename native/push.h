/* A push that is applied without Python, and its answer.
 *
 * The order is that of ps/service.py: everything that can be refused is looked at first, then the
 * worker's record is locked, and what follows either is done wholly or breaks the server. A push that
 * is not the plain next one of its worker (it came before, its worker was replaced or fenced, it is
 * not finite) is Python's: nothing was done with it here.
 */
#ifndef SHOAL_PUSH_H
#define SHOAL_PUSH_H

#include <float.h>

#include "answerer.h"
#include "finite.h"
#include "push_request.h"

enum {
    SHOAL_PUSH_FOR_PYTHON,
    SHOAL_PUSH_APPLIED,
    SHOAL_PUSH_BROKEN, /* a part was applied: nobody may use the model; the record stays locked */
    SHOAL_PUSH_ANSWER = SHOAL_MESSAGE_PREFIX + SHOAL_FRAME_PREFIX + 3 * 11 /* bytes, at most */
};

/* A push beside what the server has for it. */
typedef struct {
    const uint8_t *frame;
    size_t size;
    shoal_push read;
    shoal_facts facts;
    shoal_dense *dense;                         /* NULL: there are no values yet */
    const float *gradients[SHOAL_WIRE_TABLES];  /* of each table, as float32 */
    float *decoded;                             /* of those that travelled as 16 bits; or NULL */
} shoal_pushing;

static int shoal_is_watched(const shoal_answerer *a) {
    for (int k = 0; k < a->watched_count; k++)
        if (access(a->watched[k], F_OK) == 0) return 1;
    return 0;
}

/* As OptimizerSpec.check_learning_rate. */
static int shoal_rate_fits(const shoal_step *step, double rate) {
    return fabs(rate) <= FLT_MAX && (step->rule != SHOAL_FTRL || rate >= 1e-30);
}

static int shoal_rates_fit(const shoal_pushing *p) {
    const shoal_push *push = &p->read;
    const int count = p->facts.table_count;
    if (push->rates && push->rates != count) return 0;
    if (!shoal_rate_fits(&p->dense->step, push->learning_rate)) return 0;
    for (int k = 0; k < count; k++)
        if (!shoal_rate_fits(p->facts.tables[k].step, push->rates ? push->rate[k] : push->learning_rate))
            return 0;
    return 1;
}

/* Has the gradients of all tables be float32; 0: no memory, or one that Python has to make. */
static int shoal_decode_gradients(shoal_pushing *p) {
    const shoal_push *push = &p->read;
    uint64_t values = 0;
    for (int k = 0; k < push->tables; k++) {
        const shoal_array *rows = &push->array[push->distinct + k];
        const int whole = rows->type == SHOAL_WIRE_FLOAT32;
        if (whole && push->scales && push->scale[k] != 1.0f) return 0; /* no worker sends it */
        if (!whole) values += rows->shape[0] * rows->shape[1];
    }
    if (values && !(p->decoded = malloc(values * sizeof(float)))) return 0;
    float *next = p->decoded;
    for (int k = 0; k < push->tables; k++) {
        const shoal_array *rows = &push->array[push->distinct + k];
        const int64_t n = (int64_t)(rows->shape[0] * rows->shape[1]);
        p->gradients[k] = (const float *)rows->data;
        if (rows->type == SHOAL_WIRE_FLOAT32) continue;
        if (n) {
            if (rows->type == SHOAL_WIRE_BFLOAT16)
                shoal_decode_bfloat16((const uint16_t *)rows->data, next, n);
            else
                shoal_decode_float16((const uint16_t *)rows->data, next, n);
        }
        if (push->scales && push->scale[k] != 1.0f)
            for (int64_t i = 0; i < n; i++) next[i] *= push->scale[k];
        p->gradients[k] = next;
        next += n;
    }
    return 1;
}

static int shoal_is_finite(const shoal_pushing *p) {
    const shoal_push *push = &p->read;
    for (int k = 0; k < push->tables; k++) {
        const shoal_array *rows = &push->array[push->distinct + k];
        if (shoal_first_not_finite(p->gradients[k], (int64_t)(rows->shape[0] * rows->shape[1])) >= 0)
            return 0;
    }
    for (int k = push->arrays - 2 * push->has_dense; k < push->arrays; k++)
        if (shoal_first_not_finite((const float *)push->array[k].data, (int64_t)push->array[k].shape[0]) >= 0)
            return 0;
    return 1;
}

/* As check_push of ps/model/checks.py: whether the push is one for this model. */
static int shoal_push_fits(shoal_pushing *p) {
    const shoal_push *push = &p->read;
    shoal_moments *m = p->facts.moments;
    pthread_mutex_lock(&m->lock);
    p->dense = m->dense;
    const int64_t state_elements = m->state_elements;
    pthread_mutex_unlock(&m->lock);
    if (!p->dense || !shoal_all_here(&p->facts, push->table, push->tables, push->array, push->distinct))
        return 0;
    for (int k = 0; k < push->tables; k++)
        if (push->array[push->distinct + k].shape[1] != (uint64_t)p->facts.tables[push->table[k]].store->dim)
            return 0;
    if (push->has_dense && (push->array[push->arrays - 2].shape[0] != (uint64_t)p->dense->n ||
                            push->array[push->arrays - 1].shape[0] != (uint64_t)state_elements))
        return 0;
    return shoal_rates_fit(p);
}

/* Applies a push that was checked; 0: a part of it only. Its worker's record is locked. */
static int shoal_apply_push(const shoal_pushing *p, int64_t step, int64_t staleness, int64_t *version) {
    const shoal_push *push = &p->read;
    shoal_moments *m = p->facts.moments;
    const int64_t missed = staleness - push->own_pushes, others = missed > 0 ? missed : 0;
    const double divisor = push->modulate_rate && others > 1 ? (double)others : 1.0;
    for (int k = 0; k < push->tables; k++) {
        const shoal_served *table = &p->facts.tables[push->table[k]];
        const shoal_array *ids = &push->array[push->place[k]];
        const double rate = push->rates ? push->rate[push->table[k]] : push->learning_rate;
        const shoal_step now = shoal_step_at(table->step, rate / divisor, 1.0, (double)step);
        shoal_batch batch;
        memset(&batch, 0, sizeof batch);
        batch.n = (int64_t)ids->shape[0];
        batch.ids = (const int64_t *)ids->data;
        batch.gradients = p->gradients[k];
        batch.step = &now;
        batch.number = step;
        if (batch.n == 0) shoal_advance(table->store, step);
        else if (shoal_run(table->store, &batch) != SHOAL_OK) return 0;
    }
    const float *change = NULL;
    if (push->has_dense) {
        shoal_dense_update(p->dense, (const float *)push->array[push->arrays - 2].data,
                           push->learning_rate / divisor, 1.0, step);
        change = (const float *)push->array[push->arrays - 1].data;
    }
    pthread_mutex_lock(&m->lock);
    /* of a pull from other servers, the time is not known */
    const double age = push->pulled_time > 0 ? shoal_now() - push->pulled_time : 0;
    const shoal_stale stale = {staleness, age};
    shoal_count_version(m, change, (float)(others + 1), &stale, 1);
    shoal_note_sender(m, push->sender.worker, (int64_t)push->sender.incarnation, push->sender.sequence);
    *version = m->version;
    pthread_mutex_unlock(&m->lock);
    return 1;
}

static int shoal_is_next(const shoal_answerer *a, const shoal_push_record *record, const shoal_push *push) {
    const shoal_identity *who = &push->sender;
    /* Rows may have moved since the push was looked at: then it was closed, and has another epoch. */
    return !__atomic_load_n(&a->closed, __ATOMIC_ACQUIRE) &&
           shoal_routed_by(a, push->routing_epoch) &&
           (int64_t)who->incarnation == record->incarnation &&
           record->fenced < record->incarnation && who->sequence > record->sequence &&
           who->sequence > record->pending;
}

/* The push's step, and how many were applied since its pull, once no sweep is in its way and it is on
 * its way to the log, if there is one; 0: it is Python's. */
static int shoal_begin_push(shoal_answerer *a, const shoal_pushing *p, int64_t *step,
                            int64_t *staleness, void **waiting) {
    const shoal_push *push = &p->read;
    *waiting = NULL;
    if (!shoal_is_next(a, p->facts.record, push)) return 0;
    if (a->log.append)
        return a->log.append(a->context, p->frame, p->size, push->sender.worker, push->pulled_version,
                             push->timed ? &push->event_time : NULL, step, staleness, waiting);
    if (a->between)
        return shoal_enter(a->between, push->sender.worker, push->pulled_version, push->timed,
                           push->event_time, step, staleness) == SHOAL_ENTERED;
    return shoal_take_ticket(p->facts.moments, push->sender.worker, push->pulled_version, step, staleness);
}

/* Applies the push in a frame, and makes the answer, of SHOAL_PUSH_ANSWER bytes at most, where `made`
 * says. broken: OUT, the record that stays locked. */
static int shoal_push_once(shoal_answerer *a, shoal_pushing *p, shoal_message *made, shoal_push_record **broken) {
    const shoal_push *push = &p->read;
    shoal_push_record *record = p->facts.record;
    int64_t step, staleness, version;
    void *waiting;
    int kept = 1;
    pthread_mutex_lock(&record->lock);
    if (!shoal_begin_push(a, p, &step, &staleness, &waiting)) {
        pthread_mutex_unlock(&record->lock);
        return SHOAL_PUSH_FOR_PYTHON;
    }
    const int applied = shoal_apply_push(p, step, staleness, &version);
    if (waiting) kept = a->log.kept(a->context, waiting);
    if (applied && kept >= 0 && a->between && shoal_leave(a->between, kept)) kept = a->sweep(a->context);
    if (!applied || kept < 0) {
        *broken = record;
        return SHOAL_PUSH_BROKEN;
    }
    if (!kept) { /* another incarnation of this server has the log: Python refuses all from now on */
        pthread_mutex_unlock(&record->lock);
        return SHOAL_PUSH_FOR_PYTHON;
    }
    record->sequence = push->sender.sequence;
    record->task = push->task;
    record->records_done = push->records_done;
    pthread_mutex_unlock(&record->lock);
    uint8_t header[3 * 11];
    shoal_out out = {header};
    shoal_put_number(&out, 1, (uint64_t)version);
    shoal_put_number(&out, 2, 1);
    shoal_put_number(&out, 3, (uint64_t)staleness);
    const size_t length = (size_t)(out.at - header);
    made->size = SHOAL_MESSAGE_PREFIX + SHOAL_FRAME_PREFIX + length;
    shoal_begin_answer(made, header, (uint32_t)length);
    return SHOAL_PUSH_APPLIED;
}

/* As shoal_push_once; what may be refused is looked at. speaker: see shoal_may_speak. */
static int shoal_apply_frame(shoal_answerer *a, int64_t speaker, const uint8_t *frame, size_t size,
                             shoal_message *made, shoal_push_record **broken) {
    shoal_pushing p;
    int result = SHOAL_PUSH_FOR_PYTHON;
    p.decoded = NULL;
    p.frame = frame;
    p.size = size;
    double python_from;
    __atomic_load(&a->python_from, &python_from, __ATOMIC_RELAXED);
    if (a->whole || shoal_now() >= python_from || !shoal_read_push(frame, size, &p.read) ||
        !shoal_may_speak(speaker, &p.read.sender) ||
        !shoal_take_facts(a, &p.read.sender, p.read.routing_epoch, &p.facts) ||
        !p.facts.record || shoal_is_watched(a))
        return result;
    if (shoal_push_fits(&p) && shoal_decode_gradients(&p) && (!a->finite_only || shoal_is_finite(&p)))
        result = shoal_push_once(a, &p, made, broken);
    free(p.decoded);
    return result;
}

#endif
