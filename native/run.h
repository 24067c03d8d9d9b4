/* A batch from its beginning to its end; a large update by several threads.
 *
 * An update of many wide rows is cut into parts, which the process's crew (crew.h) does with the
 * thread that has the batch, where cores are free. To the store they are parts of batches that come at
 * the same time: nothing depends on the order in which different rows are updated, or made. That of
 * updates of one row does matter, so a batch in which an id comes twice is left to one thread. Whoever
 * makes rows keeps all others from finding theirs, so rows are made when all those that are there were
 * updated (with 65 new ones of 65,536 at once: 0.81 of the speed of one thread).
 */
#ifndef SHOAL_RUN_H
#define SHOAL_RUN_H

#include "traffic.h"

/* From so many bytes of records on an update is worth waking helpers for (2 ms of one thread; 16,384
 * rows of 64 columns with Adagrad), and in parts of about so many. */
static const size_t SHOAL_SHARED_BYTES = 8 << 20, SHOAL_PART_BYTES = 512 << 10;

/* Where more than one id of so many has no row, one thread makes them: it holds up all others. */
enum { SHOAL_FEW_MISSED = 8 };

typedef struct {
    shoal_store *store;
    const shoal_batch *batch;
    int64_t part;  /* ids in each */
    int64_t next;  /* the first id that nobody has taken */
    int alone;     /* helpers are to leave */
    int result;
    shoal_later later;
} shoal_shared;

/* A part by one of several threads, none of which keeps the others from finding rows. */
static int shoal_update_shared(shoal_shared *s, const shoal_batch *part) {
    const int64_t before = __atomic_load_n(&s->later.count, __ATOMIC_RELAXED);
    const int result = shoal_run_part(s->store, part, s, &s->later);
    const int64_t missed = __atomic_load_n(&s->later.count, __ATOMIC_RELAXED) - before;
    if (missed * SHOAL_FEW_MISSED > part->n) __atomic_store_n(&s->alone, 1, __ATOMIC_RELAXED);
    return result;
}

static void shoal_update_parts(void *piece, int helping) {
    shoal_shared *const s = piece;
    const shoal_batch *const all = s->batch;
    while (__atomic_load_n(&s->result, __ATOMIC_RELAXED) == SHOAL_OK) {
        const int alone = __atomic_load_n(&s->alone, __ATOMIC_RELAXED);
        if (alone && helping) return;
        const int64_t from = __atomic_fetch_add(&s->next, s->part, __ATOMIC_RELAXED);
        if (from >= all->n) return;
        shoal_batch part = *all;
        part.n = all->n - from < s->part ? all->n - from : s->part;
        part.ids = all->ids + from;
        part.gradients = all->gradients + from * s->store->dim;
        const int result = alone ? shoal_run_part(s->store, &part, s, NULL) : shoal_update_shared(s, &part);
        if (result != SHOAL_OK) __atomic_store_n(&s->result, result, __ATOMIC_RELAXED);
    }
}

/* Updates the ids that were put off. */
static int shoal_update_later(shoal_shared *s) {
    const int64_t dim = s->store->dim, count = s->later.count;
    const int64_t most = (int64_t)(SHOAL_SHARED_BYTES / sizeof(float)) / dim;
    int64_t ids[SHOAL_BLOCK], room = count < SHOAL_BLOCK ? count : SHOAL_BLOCK;
    shoal_batch some = *s->batch;
    int result = s->result;
    if (room > most) room = most;
    float *const gradients = room > 1 ? malloc((size_t)(room * dim) * sizeof *gradients) : NULL;
    if (!gradients) room = 1; /* without memory, each by itself */
    for (int64_t from = 0; from < count && result == SHOAL_OK; from += room) {
        some.n = count - from < room ? count - from : room;
        for (int64_t i = 0; i < some.n; i++) {
            const int64_t place = s->later.places[from + i];
            ids[i] = s->batch->ids[place];
            some.gradients = s->batch->gradients + place * dim;
            if (gradients) memcpy(gradients + i * dim, some.gradients, (size_t)dim * sizeof *gradients);
        }
        some.ids = ids;
        if (gradients) some.gradients = gradients;
        result = shoal_run_part(s->store, &some, s, NULL);
    }
    free(gradients);
    return result;
}

/* Puts hashes into a table of marks, zeroed, `mask + 1` of them; returns whether one was there
 * already. Those whose place another one has are left over: in `left`, with room for n, which may be
 * `hashes` itself. No branch depends on which these are: a third of the time. */
static int shoal_mark_hashes(const uint64_t *hashes, int64_t n, uint32_t *table, uint64_t mask,
                             uint64_t *left, int64_t *left_over) {
    int64_t count = *left_over;
    int again = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t hash = hashes[i];
        const uint32_t mark = (uint32_t)(hash >> 32) | 1u, other = table[hash & mask];
        again |= other == mark;
        table[hash & mask] = other ? other : mark;
        left[count] = hash;
        count += other != 0;
    }
    *left_over = count;
    return again;
}

/* Whether no id comes twice. Once in many thousand batches it says so of different ids, too, and
 * without memory always. */
static int shoal_are_distinct(const int64_t *ids, int64_t n, uint64_t key) {
    uint64_t hashes[SHOAL_BLOCK], places = 1;
    while (places < (uint64_t)n * 2) places *= 2;
    uint32_t *const table = malloc(places * sizeof *table);
    uint64_t *const left = malloc(((size_t)n + 1) * sizeof *left);
    int64_t rest = 0;
    int again = !table || !left;
    if (!again) memset(table, 0, places * sizeof *table);
    for (int64_t base = 0; base < n && !again; base += SHOAL_BLOCK) {
        const int64_t some = n - base < SHOAL_BLOCK ? n - base : SHOAL_BLOCK;
        shoal_hash_ids(ids + base, hashes, some, key);
        again = shoal_mark_hashes(hashes, some, table, places - 1, left, &rest);
    }
    while (rest && !again) { /* equal ones are all among those left over, or none is */
        const int64_t some = rest;
        rest = 0;
        while (places / 4 >= (uint64_t)some) places /= 2;
        memset(table, 0, places * sizeof *table);
        again = shoal_mark_hashes(left, some, table, places - 1, left, &rest);
    }
    free(left);
    free(table);
    return !again;
}

/* An update from its beginning to its end. */
static int shoal_update(shoal_store *t, const shoal_batch *b) {
    int helpers = 0;
    int64_t *places = NULL;
    if ((size_t)b->n * t->stride >= SHOAL_SHARED_BYTES && (helpers = shoal_spare_cores(t->crew)) &&
        shoal_are_distinct(b->ids, b->n, t->place_key))
        places = malloc((size_t)b->n * sizeof *places);
    if (!places) return shoal_run_part(t, b, b, NULL);
    const int64_t part = (int64_t)(SHOAL_PART_BYTES / t->stride);
    shoal_shared shared = {t, b, part < 1 ? 1 : part, 0, 0, SHOAL_OK, {b->ids, places, 0}};
    shoal_do_together(t->crew, helpers, shoal_update_parts, &shared);
    const int result = shoal_update_later(&shared);
    free(places);
    return result;
}

/* Runs a batch: a lookup if it has `out`, an update if it has gradients, else an
 * assignment (without values: an insertion). Returns SHOAL_OK or SHOAL_NO_MEMORY,
 * after which a part of the batch may have been done. */
static int shoal_run(shoal_store *t, const shoal_batch *b) {
    int result;
    shoal_count_batch(t->crew, 1);
    if (b->gradients) {
        shoal_advance(t, b->number);
        __atomic_add_fetch(&t->updating, 1, __ATOMIC_SEQ_CST);
        result = shoal_update(t, b);
        __atomic_sub_fetch(&t->updating, 1, __ATOMIC_SEQ_CST);
    } else {
        result = shoal_run_part(t, b, b, NULL);
    }
    shoal_count_batch(t->crew, -1);
    return result;
}

/* Makes room in the index for so many rows in all. Returns SHOAL_OK or SHOAL_NO_MEMORY. */
static int shoal_reserve(shoal_store *t, int64_t rows) {
    pthread_rwlock_wrlock(&t->lock);
    const int ready = shoal_index_reserve(&t->index, rows, &t->arena);
    pthread_rwlock_unlock(&t->lock);
    return ready ? SHOAL_OK : SHOAL_NO_MEMORY;
}

#endif
