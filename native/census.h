/* How many rows and counts were last used before a step, and when, as of one moment, counted beside
 * pushes.
 *
 * A scan goes over the table in pieces, each between two pushes. Meanwhile pushes use some of the rows,
 * which are counted by what they were: whoever changes an entry that was last used before notes it,
 * with whether the scan has been there. So the sum is that of the moment at which the census began,
 * whatever order each process finds its entries in.
 */
#ifndef SHOAL_CENSUS_H
#define SHOAL_CENSUS_H

#include "store.h"

/* Bounds, which ascend, and where to look for the place of a step among them: `reached` has, of each
 * cell of 1 << shift steps from bounds[0] on, the number of bounds up to its first step. Where bounds
 * are even there is one more, or none, in the step's own cell. */
typedef struct {
    const int64_t *bounds;
    int64_t count; /* of bounds */
    const uint16_t *reached;
    int64_t cells;
    int shift;
} shoal_bounds;

/* The number of bounds that a step has reached. */
SHOAL_INLINE int64_t shoal_reached(const shoal_bounds *b, int64_t step) {
    if (!b->count || step < b->bounds[0]) return 0;
    const int64_t cell = (step - b->bounds[0]) >> b->shift;
    int64_t reached = b->reached[cell < b->cells ? cell : b->cells - 1];
    while (reached < b->count && b->bounds[reached] <= step) reached++;
    return reached;
}

/* Of an id among all: the same in every process. The hash itself, which gives its server, would
 * prefer one part of a server's ids. */
SHOAL_INLINE uint64_t shoal_order(int64_t id) {
    return shoal_mix64(shoal_mix64((uint64_t)id));
}

enum { SHOAL_ORDER_CLASSES = 16 };

/* Each count: [2, bounds, SHOAL_ORDER_CLASSES], of what is counted and of rows, by the first bound that
 * the last use was before, and the upper bits of the id's order. seen: by the scan. left: of entries
 * that were used since it began; missed: of these, where the scan had not been. cursor: how far it is. */
struct shoal_census {
    shoal_bounds bounds;
    int64_t *seen, *left, *missed;
    uint64_t cursor;
};

SHOAL_INLINE uint32_t shoal_reversed(uint32_t x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
    return __builtin_bswap32(x);
}

/* row: it has one. */
SHOAL_INLINE void shoal_census_add(const shoal_store *t, int64_t *counts, int row, uint64_t hash,
                                   int64_t step, const struct shoal_census *c) {
    const int64_t place = shoal_reached(&c->bounds, step);
    if (place == c->bounds.count) return;
    const uint64_t order = shoal_order(shoal_id_of(t, hash)) / (UINT64_MAX / SHOAL_ORDER_CLASSES + 1);
    int64_t *const count = &counts[(row * c->bounds.count + place) * SHOAL_ORDER_CLASSES + (int64_t)order];
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

/* Call before an entry is changed; row: it has one. Its lock, or the structure lock exclusively, is
 * held. */
static void shoal_note_left(const shoal_store *t, int row, uint64_t hash, uint64_t header) {
    const struct shoal_census *c = t->census;
    const int64_t step = shoal_step_in(t, header);
    if (step >= c->bounds.bounds[c->bounds.count - 1]) return;
    shoal_census_add(t, c->left, row, hash, step, c);
    if (shoal_reversed((uint32_t)hash) >= __atomic_load_n(&c->cursor, __ATOMIC_RELAXED))
        shoal_census_add(t, c->missed, row, hash, step, c);
}

/* The header of a row that was just made, until its first update: so that is no use of one that was
 * there. The structure lock is held exclusively. */
static void shoal_census_excludes(const shoal_store *t, uint64_t *meta) {
    const struct shoal_census *c = t->census;
    *meta = (*meta & ~(uint64_t)UINT32_MAX) | shoal_version_at(t, c->bounds.bounds[c->bounds.count - 1]);
}

/* Begins a census, or ends it: NULL. */
static void shoal_census_set(shoal_store *t, struct shoal_census *c) {
    pthread_rwlock_wrlock(&t->lock);
    t->census = c;
    pthread_rwlock_unlock(&t->lock);
}

#endif
