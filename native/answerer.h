/* What a server knows that answers pulls and pushes without Python, and its counts.
 *
 * The server's Python publishes the facts as it changes them, each set under one lock, so an answer
 * is one that Python could have given at a moment between the request's coming and its answer.
 */
#ifndef SHOAL_ANSWERER_H
#define SHOAL_ANSWERER_H

#include <unistd.h>

#include "clock.h"
#include "moments.h"
#include "between.h"
#include "pushes.h"
#include "run.h"
#include "whole.h"
#include "wire.h"

enum {
    SHOAL_SLOT_BYTES = (1 << SHOAL_SLOT_BITS) / 8,
    SHOAL_BUCKETS = 32 /* of a histogram of durations, at most */
};

typedef struct {
    shoal_store *store;
    const shoal_step *step; /* of its optimizer, what is the same in each update */
    int vocabulary, frozen; /* as in TableSpec */
    int64_t bound;  /* ids that are not below it, or below 0, read zeros; 0: all are read */
    int64_t *reads; /* adds up ids that were read, and those without a row; NULL: does not */
} shoal_served;

/* Answers given, by how long each took to make, and the seconds of all. */
typedef struct {
    int64_t buckets[SHOAL_BUCKETS + 1];
    double seconds;
} shoal_durations;

/* A log of pushes, which is Python's. append: has room and a ticket for a push, enters it where there
 * is a `between`, and sends it on its way; time: the push's, or NULL; 0: the push is Python's, as
 * there is no room, or it is not plain. kept: waits for what append gave; 0: no push is taken any more,
 * -1: an error of ours. Both are called with the lock of the worker's record held. */
typedef struct {
    int (*append)(void *context, const uint8_t *frame, size_t size, uint64_t worker,
                  int64_t pulled_version, const int64_t *time, int64_t *step, int64_t *staleness,
                  void **waiting);
    int (*kept)(void *context, void *waiting);
} shoal_log;

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
    shoal_log log;           /* append is NULL: there is none; with the model, for good */
    shoal_between *between;  /* what pushes enter; NULL: no row is ever removed; as the log */
    shoal_whole *whole;      /* of --sync, whose pushes are Python's; NULL: of another job; for good */
    int (*sweep)(void *context); /* does a part of a sweep and opens the way; returns as log.kept */
    void *context;           /* of both */
    int closed;              /* no push is taken any more; read under the lock of a record */
    int finite_only;         /* pushes with a NaN or an infinity are Python's to refuse; for good */
    double python_from;      /* the next push that comes then or later is for Python */
    shoal_push_record **records;  /* by worker; NULL: none of its pushes has come */
    size_t recorded;
    const char *const *watched; /* files; while one is there, pushes are for Python; for good */
    int watched_count;
    const double *bounds; /* of durations, seconds; for good */
    int bound_count;
    shoal_durations pulled, pushed;
    uint32_t asked;                    /* pulls, for which of them are counted by slot */
    uint32_t loads[1 << SHOAL_SLOT_BITS]; /* ids that they asked for */
} shoal_answerer;

enum { SHOAL_LOAD_EVERY = 16 }; /* so many pulls are counted by slot once */
static const uint32_t SHOAL_MOST_LOAD = 1u << 31;

/* Whether a pull is one of those whose ids are counted by slot. */
static int shoal_counts_load(shoal_answerer *a) {
    return __atomic_fetch_add(&a->asked, 1, __ATOMIC_RELAXED) % SHOAL_LOAD_EVERY == 0;
}

/* Loads are shares of one another: where one has come so far, all are halved. */
static void shoal_halve_loads(shoal_answerer *a) {
    for (int slot = 0; slot < 1 << SHOAL_SLOT_BITS; slot++) {
        uint32_t *load = &a->loads[slot];
        __atomic_store_n(load, __atomic_load_n(load, __ATOMIC_RELAXED) / 2, __ATOMIC_RELAXED);
    }
}

/* Counts ids of such a pull. Without a lock: a count that is lost changes nothing. */
static void shoal_note_load(shoal_answerer *a, const int64_t *ids, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t *load = &a->loads[shoal_slot(shoal_mix64((uint64_t)ids[i]))];
        const uint32_t count = __atomic_load_n(load, __ATOMIC_RELAXED) + 1;
        __atomic_store_n(load, count, __ATOMIC_RELAXED);
        if (count >= SHOAL_MOST_LOAD) shoal_halve_loads(a);
    }
}

static int shoal_note_met(shoal_answerer *a, uint64_t worker, int64_t incarnation) {
    if (worker >= SHOAL_WORKERS) return 1; /* Python answers it */
    int64_t *met = shoal_with_place(a->met, &a->known, worker, sizeof *met, 0xFF); /* -1 */
    if (!met) return 0;
    a->met = met;
    if (incarnation > a->met[worker]) a->met[worker] = incarnation;
    return 1;
}

/* Has pushes of a worker be noted in a record. Lock held. Returns 0 without memory. */
static int shoal_know_record(shoal_answerer *a, uint64_t worker, shoal_push_record *record) {
    if (worker >= SHOAL_WORKERS) return 1; /* Python answers it */
    shoal_push_record **records = shoal_with_place(a->records, &a->recorded, worker, sizeof *records, 0);
    if (!records) return 0;
    a->records = records;
    a->records[worker] = record;
    return 1;
}

/* Taken: pushes are. Who locks a record after they are not sees none of it begin. */
static void shoal_take_pushes(shoal_answerer *a, int taken) {
    __atomic_store_n(&a->closed, !taken, __ATOMIC_RELEASE);
}

static void shoal_leave_from(shoal_answerer *a, double moment) {
    __atomic_store(&a->python_from, &moment, __ATOMIC_RELAXED);
}

static void shoal_count_answer(shoal_answerer *a, shoal_durations *d, double seconds) {
    int bucket = 0;
    while (bucket < a->bound_count && a->bounds[bucket] < seconds) bucket++;
    pthread_mutex_lock(&a->lock);
    d->buckets[bucket]++;
    d->seconds += seconds;
    pthread_mutex_unlock(&a->lock);
}

/* What holds at one moment, for one request. */
typedef struct {
    int alone, table_count;
    uint8_t own[SHOAL_SLOT_BYTES];
    const shoal_served *tables;
    shoal_moments *moments;
    shoal_push_record *record; /* of the caller; may be NULL */
} shoal_facts;

/* The routing table by which requests are answered from now on; under the lock. Also read without. */
static void shoal_set_epoch(shoal_answerer *a, int64_t epoch) {
    __atomic_store_n(&a->epoch, epoch, __ATOMIC_RELEASE);
}

static int shoal_routed_by(const shoal_answerer *a, int64_t epoch) {
    return __atomic_load_n(&a->epoch, __ATOMIC_ACQUIRE) == epoch;
}

enum { SHOAL_ANYBODY = -2, SHOAL_NOBODY = -1 }; /* for whom a connection may speak, else one worker */

/* Whether a connection may speak for the caller that a request names; as check_speaker. */
static int shoal_may_speak(int64_t speaker, const shoal_identity *caller) {
    return speaker == SHOAL_ANYBODY || (speaker >= 0 && caller->worker == (uint64_t)speaker);
}

/* Whether the server answers such a caller, and the facts; 0: Python has to. */
static int shoal_take_facts(shoal_answerer *a, const shoal_identity *caller, int64_t epoch,
                            shoal_facts *facts) {
    int64_t met = -1;
    if (caller->worker >= SHOAL_WORKERS) return 0;
    pthread_mutex_lock(&a->lock);
    if (caller->worker < a->known) met = a->met[caller->worker];
    const int may = a->open && a->moments && epoch == a->epoch &&
                    (!a->again || !caller->there || (int64_t)caller->incarnation <= met);
    facts->alone = a->alone;
    if (!a->alone) memcpy(facts->own, a->own, sizeof facts->own);
    facts->tables = a->tables;
    facts->table_count = a->table_count;
    facts->moments = a->moments;
    facts->record = caller->worker < a->recorded ? a->records[caller->worker] : NULL;
    pthread_mutex_unlock(&a->lock);
    return may;
}

static int shoal_is_own(const uint8_t *own, int64_t id) {
    const uint32_t slot = shoal_slot(shoal_mix64((uint64_t)id));
    return own[slot / 8] >> slot % 8 & 1;
}

/* Whether tables that are named are there, and ids this server's. */
static int shoal_all_here(const shoal_facts *facts, const uint32_t *tables, int table_count,
                          const shoal_array *ids, int arrays) {
    for (int k = 0; k < table_count; k++)
        if (tables[k] >= (uint32_t)facts->table_count) return 0;
    for (int k = 0; k < arrays && !facts->alone; k++) {
        const int64_t *const each = (const int64_t *)ids[k].data;
        for (uint64_t i = 0; i < ids[k].shape[0]; i++)
            if (!shoal_is_own(facts->own, each[i])) return 0;
    }
    return 1;
}

/* ---- answers ---- */

typedef struct {
    char *start; /* of memory, which holds a message of the data plane */
    size_t size;
} shoal_message;

/* Begins an ANSWER of a size that is known, whose frame has this header. Returns where its arrays
 * are, but for padding. */
static char *shoal_begin_answer(shoal_message *made, const uint8_t *header, uint32_t length) {
    const uint64_t announced = made->size - SHOAL_MESSAGE_PREFIX;
    char *frame = made->start + SHOAL_MESSAGE_PREFIX;
    memcpy(made->start, "SHD1\100\0\0\0", 8);
    memcpy(made->start + 8, &announced, 8);
    memcpy(frame, shoal_frame_magic, 4);
    memcpy(frame + 4, &length, 4);
    memcpy(frame + SHOAL_FRAME_PREFIX, header, length);
    return frame + SHOAL_FRAME_PREFIX + length;
}

#endif
