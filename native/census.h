/* How many rows and counts were last used before a step, and how long before, as of one moment, counted
 * beside pushes.
 *
 * A scan goes over the table in pieces, each between two pushes. Meanwhile pushes use some of the rows,
 * which are counted by what they were: whoever changes an entry that was last used before notes it,
 * with whether the scan has been there. So the sum is that of the moment at which the census began,
 * whatever order each process finds its entries in.
 */
#ifndef SHOAL_CENSUS_H
#define SHOAL_CENSUS_H

#include "store.h"

/* Of an id among all: the same in every process. The hash itself, which gives its server, would
 * prefer one part of a server's ids. */
SHOAL_INLINE uint64_t shoal_order(int64_t id) {
    return shoal_mix64(shoal_mix64((uint64_t)id));
}

/* Ages below 16 steps are told apart each, and above that 16 in each octave. */
enum { SHOAL_ORDER_CLASSES = 16, SHOAL_AGE_CLASSES = 16 * 29 };

SHOAL_INLINE int64_t shoal_age_class(uint32_t age) {
    if (age < 16) return age;
    const int octave = 31 - __builtin_clz(age);
    return (octave - 3) * 16 + (age >> (octave - 4) & 15u);
}

/* end: what was last used at this step or later is not counted; ages are to the step before. by_worth:
 * the ages of rows are divided by one more than their use class, by which they may be older.
 * Each count: [2, SHOAL_AGE_CLASSES, SHOAL_ORDER_CLASSES], of what is counted and of rows, by age and the
 * upper bits of the id's order. seen: by the scan. left: of entries that were used since it began;
 * missed: of these, where the scan had not been. cursor: how far it is. */
struct shoal_census {
    int64_t end;
    int by_worth;
    int64_t *seen, *left, *missed;
    uint64_t cursor;
};

SHOAL_INLINE uint32_t shoal_reversed(uint32_t x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
    return __builtin_bswap32(x);
}

/* The place of an entry's count, or -1; row: it has one. */
SHOAL_INLINE int64_t shoal_census_place(const shoal_store *t, const struct shoal_census *c, int row,
                                        uint64_t hash, uint64_t header) {
    const int64_t ago = c->end - 1 - shoal_step_in(t, header);
    if (ago < 0) return -1;
    uint32_t age = ago > UINT32_MAX ? UINT32_MAX : (uint32_t)ago;
    if (row && c->by_worth) age /= 1 + (uint32_t)shoal_use_class(shoal_uses_of(header));
    const uint64_t order = shoal_order(shoal_id_of(t, hash)) / (UINT64_MAX / SHOAL_ORDER_CLASSES + 1);
    return (row * SHOAL_AGE_CLASSES + shoal_age_class(age)) * SHOAL_ORDER_CLASSES + (int64_t)order;
}

/* Call before an entry is changed; row: it has one. Its lock, or the structure lock exclusively, is
 * held. */
static void shoal_note_left(const shoal_store *t, int row, uint64_t hash, uint64_t header) {
    const struct shoal_census *c = t->census;
    const int64_t place = shoal_census_place(t, c, row, hash, header);
    if (place < 0) return;
    __atomic_fetch_add(&c->left[place], 1, __ATOMIC_RELAXED);
    if (shoal_reversed((uint32_t)hash) >= __atomic_load_n(&c->cursor, __ATOMIC_RELAXED))
        __atomic_fetch_add(&c->missed[place], 1, __ATOMIC_RELAXED);
}

/* The header of a row that was just made, until its first update: so that is no use of one that was
 * there. The structure lock is held exclusively. */
static void shoal_census_excludes(const shoal_store *t, uint64_t *meta) {
    const struct shoal_census *c = t->census;
    *meta = (*meta & ~(uint64_t)UINT32_MAX) | shoal_version_at(t, c->end);
}

/* Begins a census, or ends it: NULL. */
static void shoal_census_set(shoal_store *t, struct shoal_census *c) {
    pthread_rwlock_wrlock(&t->lock);
    t->census = c;
    pthread_rwlock_unlock(&t->lock);
}

#endif
