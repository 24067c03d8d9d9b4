/* A model's moment: its step, its version, and what changes with them.
 *
 * All of it is read and changed under one lock, so that what a pull is told beside the rows is of
 * one moment. Whoever holds the lock waits for nothing but the locks of tables.
 */
#ifndef SHOAL_MOMENTS_H
#define SHOAL_MOMENTS_H

#include <pthread.h>
#include <stdlib.h>

#include "dense.h"
#include "eras.h"

enum {
    SHOAL_WORKERS = 1 << 16, /* those with an index below are known here */
    SHOAL_DOUBLINGS = 64     /* buckets of a distribution: proto/values/distribution.py */
};

typedef struct {
    int64_t incarnation; /* of the last push in the version; -1: none */
    uint64_t sequence;
} shoal_sender;

/* Values of at least 0, in buckets that double in width, the first of one unit. */
typedef struct {
    double unit;
    int64_t buckets[SHOAL_DOUBLINGS], count;
    double sum, maximum;
} shoal_distribution;

typedef struct {
    pthread_mutex_t lock;
    shoal_store *const *stores; /* of all tables */
    int store_count;
    int64_t step; /* the optimizers' last one */
    int64_t version, dense_version;
    shoal_sender *senders; /* by worker */
    size_t known;
    shoal_dense *dense;    /* the trainable slice; NULL before the first values */
    int64_t dense_epoch;   /* of the routing table from which on these slices hold */
    float *state;          /* the non-trainable slice, of the same moment as the version */
    int64_t state_elements;
    shoal_distribution staleness, age;
} shoal_moments;

/* Of a push that was applied. stale: pushes applied between its pull and it. age: seconds since the
 * pull. */
typedef struct {
    int64_t staleness;
    double age;
} shoal_stale;

static void shoal_add_value(shoal_distribution *d, double value) {
    value = value > 0.0 ? value : 0.0;
    const double units = value / d->unit;
    int bucket = SHOAL_DOUBLINGS - 1;
    if (units < 9.2e18) {
        const uint64_t whole = (uint64_t)units;
        bucket = whole ? 64 - __builtin_clzll(whole) : 0;
    }
    d->buckets[bucket]++;
    d->count++;
    d->sum += value;
    d->maximum = value > d->maximum ? value : d->maximum;
}

/* Has the optimizers' last step be this one. Lock held. */
static void shoal_begin_step(shoal_moments *m, int64_t step) {
    /* All tables at once, also those that are not in its push: what they tell apart of steps depends
     * on the step alone, and is the same after a restore. */
    if (step >> SHOAL_ERA_BITS != m->step >> SHOAL_ERA_BITS)
        for (int k = 0; k < m->store_count; k++) shoal_advance(m->stores[k], step);
    m->step = step;
}

/* An array by worker with a place for this one. room: INOUT. size: bytes of an element, which are
 * all `fill` where they are new. Returns NULL without memory, and leaves the array as it was. */
static void *shoal_with_place(void *array, size_t *room, uint64_t worker, size_t size, int fill) {
    size_t wanted = *room ? *room : 16;
    if (worker < *room) return array;
    while (wanted <= worker) wanted *= 2;
    char *grown = realloc(array, wanted * size);
    if (!grown) return NULL;
    memset(grown + *room * size, fill, (wanted - *room) * size);
    *room = wanted;
    return grown;
}

/* Room for a worker's last push. Lock held. Returns 0 without memory. */
static int shoal_expect_sender(shoal_moments *m, uint64_t worker) {
    if (worker >= SHOAL_WORKERS) return 1;
    /* All bits of an incarnation set: -1. */
    void *senders = shoal_with_place(m->senders, &m->known, worker, sizeof *m->senders, 0xFF);
    if (!senders) return 0;
    m->senders = senders;
    return 1;
}

/* The sequence of a caller's last push in the version; 0: there is none. Lock held. */
static uint64_t shoal_last_applied(const shoal_moments *m, uint64_t worker, int64_t incarnation) {
    const int there = worker < m->known && m->senders[worker].incarnation == incarnation;
    return there ? m->senders[worker].sequence : 0;
}

/* Whether a pull is to have the dense slices, whose caller has them of a version: -1 always, -2
 * never. A version beyond ours is of before this server was started from a checkpoint. Lock held. */
static int shoal_wants_dense(const shoal_moments *m, int64_t has) {
    return has != -2 && !(has != -1 && m->dense_version <= has && has <= m->version);
}

/* Has a worker's last push in the version be this one. Lock held, and room made. */
static void shoal_note_sender(shoal_moments *m, uint64_t worker, int64_t incarnation, uint64_t sequence) {
    if (worker < m->known) m->senders[worker] = (shoal_sender){incarnation, sequence};
}

/* The next push's step, and how many pushes were applied since its pull. Returns 0 without memory. */
static int shoal_take_ticket(shoal_moments *m, uint64_t worker, int64_t pulled_version, int64_t *step,
                             int64_t *staleness) {
    pthread_mutex_lock(&m->lock);
    const int room = shoal_expect_sender(m, worker);
    if (room) {
        /* Concurrent pushes each need a step of their own for bias correction. */
        shoal_begin_step(m, m->step + 1);
        *step = m->step;
        *staleness = m->version > pulled_version ? m->version - pulled_version : 0;
    }
    pthread_mutex_unlock(&m->lock);
    return room;
}

/* Another version, of which all but the change of the non-trainable slice is done. Lock held.
 *
 * change: [state_elements], divided by `divisor` here; NULL: none. */
static void shoal_count_version(shoal_moments *m, const float *change, float divisor,
                                const shoal_stale *stale, int count) {
    m->version++;
    if (change) {
        for (int64_t k = 0; k < m->state_elements; k++) m->state[k] += change[k] / divisor;
        m->dense_version = m->version;
    }
    for (int k = 0; k < count; k++) {
        shoal_add_value(&m->staleness, (double)stale[k].staleness);
        shoal_add_value(&m->age, stale[k].age);
    }
}

#endif
