/* Which rows and counts are old, by their headers alone, and their removal.
 *
 * The scans read 16 bytes a row and no record, a segment at a time under the shared structure
 * lock, with the cursor of scan.h. Removal looks at each header again under the exclusive lock,
 * SHOAL_INSERTS ids at a time: what was used since the scan stays.
 */
#ifndef SHOAL_EXPIRY_H
#define SHOAL_EXPIRY_H

#include "scan.h"

/* What is chosen by the step of its last use: below sure[use class], and below maybe[use class] if
 * the id's order is below `below`. sure NULL: nothing. */
typedef struct {
    const int64_t *sure, *maybe; /* [SHOAL_USE_CLASSES] */
    uint64_t below;
} shoal_choice;

/* Of rows, and of what is counted; nothing that was last used before `from`. */
typedef struct {
    shoal_choice rows, counting;
    int64_t from;
} shoal_cuts;

SHOAL_INLINE int shoal_is_chosen(const shoal_store *t, const shoal_cuts *cuts, uint64_t hash,
                                 uint64_t tag, uint64_t header) {
    const shoal_choice *choice = shoal_live(tag) ? &cuts->rows : &cuts->counting;
    if (!choice->sure) return 0;
    const int64_t step = shoal_step_in(t, header);
    const int use_class = shoal_use_class(shoal_uses_of(header));
    if (step < cuts->from || step >= choice->maybe[use_class]) return 0;
    return step < choice->sure[use_class] || shoal_order(shoal_id_of(t, hash)) < choice->below;
}

/* What a scan does with an entry: hash, tag and header of it, and what the scan is to fill. */
typedef void shoal_visit(const shoal_store *t, uint64_t hash, uint64_t tag, uint64_t header,
                         void *found);

/* Has the entries of the next segment visited, rows and counts. Not at the end. */
SHOAL_INLINE void shoal_visit_segment(shoal_store *t, uint64_t *cursor, shoal_visit *visit,
                                      void *found) {
    pthread_rwlock_rdlock(&t->lock);
    const uint32_t place = shoal_place(&t->index, shoal_reversed((uint32_t)*cursor));
    const uint64_t word = t->index.directory[place];
    for (uint32_t i = 0; i <= shoal_mask(word); i++) {
        const shoal_bucket *b = shoal_segment(word) + i;
        for (int k = 0; k < SHOAL_LANES; k++) {
            if (!shoal_taken(b->tag[k])) continue;
            const uint64_t hash = (b->tag[k] & ~SHOAL_PLACE_BITS) | (place & SHOAL_PLACE_BITS);
            if (shoal_reversed((uint32_t)hash) < *cursor) continue; /* see shoal_export_segment */
            visit(t, hash, b->tag[k], __atomic_load_n(&b->meta[k], __ATOMIC_RELAXED), found);
        }
    }
    *cursor = shoal_cursor_after(&t->index, *cursor, place);
    pthread_rwlock_unlock(&t->lock);
}

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

/* Numbers of entries, of rows and of what is counted: each [count + 1, SHOAL_USE_CLASSES]. */
typedef struct {
    const shoal_bounds *bounds;
    int64_t *rows, *counting;
} shoal_tally;

SHOAL_INLINE void shoal_tally_entry(const shoal_store *t, uint64_t hash, uint64_t tag,
                                    uint64_t header, void *found) {
    const shoal_tally *tally = found;
    (void)hash;
    const int64_t line = shoal_reached(tally->bounds, shoal_step_in(t, header));
    int64_t *table = shoal_live(tag) ? tally->rows : tally->counting;
    table[line * SHOAL_USE_CLASSES + shoal_use_class(shoal_uses_of(header))]++;
}

/* Adds the next segment's entries to the tables of numbers. 0: at the end. */
static int shoal_count_segment(shoal_store *t, uint64_t *cursor, const shoal_bounds *bounds,
                               int64_t *rows, int64_t *counting) {
    shoal_tally tally = {bounds, rows, counting};
    if (*cursor >> 32) return 0;
    shoal_visit_segment(t, cursor, shoal_tally_entry, &tally);
    return 1;
}

SHOAL_INLINE void shoal_census_entry(const shoal_store *t, uint64_t hash, uint64_t tag,
                                     uint64_t header, void *found) {
    struct shoal_census *c = found;
    const int64_t place = shoal_census_place(t, c, shoal_live(tag), hash, header);
    if (place >= 0) c->seen[place]++;
}

/* Has a census go on to a cursor. No push may be under way. */
static void shoal_census_look(shoal_store *t, struct shoal_census *c, uint64_t until) {
    uint64_t cursor = c->cursor;
    while (!(cursor >> 32) && cursor < until) shoal_visit_segment(t, &cursor, shoal_census_entry, c);
    __atomic_store_n(&c->cursor, cursor, __ATOMIC_RELAXED);
}

typedef struct {
    const shoal_cuts *cuts;
    int64_t *ids, filled;
} shoal_collected;

SHOAL_INLINE void shoal_collect_entry(const shoal_store *t, uint64_t hash, uint64_t tag,
                                      uint64_t header, void *found) {
    shoal_collected *into = found;
    into->ids[into->filled] = shoal_id_of(t, hash);
    into->filled += shoal_is_chosen(t, into->cuts, hash, tag, header);
}

/* Writes the chosen ids of segment after segment while `room` is left for a whole one, up to a cursor.
 * Returns how many. */
static int64_t shoal_collect(shoal_store *t, uint64_t *cursor, const shoal_cuts *cuts, int64_t *ids,
                             int64_t room, uint64_t until) {
    shoal_collected found = {cuts, ids, 0};
    while (!(*cursor >> 32) && *cursor < until && room - found.filled >= SHOAL_SEGMENT_ROWS)
        shoal_visit_segment(t, cursor, shoal_collect_entry, &found);
    return found.filled;
}

/* Removes those of n ids that are chosen; cuts NULL: all. removed: their ids, in order, [n], or
 * NULL. rows: how many of them had a row. Returns how many they are, or -1 without memory. */
static int64_t shoal_remove(shoal_store *t, const int64_t *ids, int64_t n, const shoal_cuts *cuts,
                            int64_t *removed, int64_t *rows) {
    int64_t done = 0;
    int ready = 1;
    for (int64_t base = 0; base < n && ready; base += SHOAL_INSERTS) {
        const int64_t end = base + SHOAL_INSERTS < n ? base + SHOAL_INSERTS : n;
        pthread_rwlock_wrlock(&t->lock);
        for (int64_t i = base; i < end; i++)
            shoal_prefetch(shoal_home_bucket(&t->index, shoal_hash_of(t, ids[i])));
        for (int64_t i = base; i < end && ready; i++) {
            const uint64_t hash = shoal_hash_of(t, ids[i]);
            shoal_entry e = shoal_find_any(&t->index, hash);
            if (!e.bucket) continue;
            const uint64_t tag = e.bucket->tag[e.lane];
            if (cuts && !shoal_is_chosen(t, cuts, hash, tag, e.bucket->meta[e.lane])) continue;
            ready = shoal_drop(t, hash, e);
            if (!ready) break;
            *rows += shoal_live(tag);
            if (removed) removed[done] = ids[i];
            done++;
        }
        pthread_rwlock_unlock(&t->lock);
    }
    return ready ? done : -1;
}

#endif
