/* Ids that are counted before they get a row.
 *
 * With admit_after = k above 1, an id's first k - 1 updates leave an entry of the index with its
 * use count and last version, and no row; the k-th makes the row. An entry that counts is changed
 * under its lock, the bit in its header, with the structure lock held shared. Those that come,
 * go or get a row change the index, so the structure lock is held exclusively. How it looks is in
 * index.h; which ids of a batch have no row is found by traffic.h.
 */
#ifndef SHOAL_COUNTING_H
#define SHOAL_COUNTING_H

#include "eras.h"

enum {
    SHOAL_BLOCK = 2048,  /* ids per hold of the shared lock */
    SHOAL_INSERTS = 256, /* ids per hold of the exclusive lock */
    SHOAL_MAX_ADMIT_AFTER = SHOAL_MANY_USES - 1
};

enum { SHOAL_OK = 0, SHOAL_NO_MEMORY = 1 };

/* Places in a block of the ids that have no row, in order. */
typedef struct {
    uint32_t count;
    uint16_t places[SHOAL_BLOCK];
} shoal_missed;

SHOAL_INLINE void shoal_miss(shoal_missed *m, uint64_t place) {
    m->places[m->count++] = (uint16_t)place;
}

SHOAL_INLINE int shoal_is_admitted(const shoal_store *t, uint64_t header) {
    return shoal_uses_of(header) + 1 >= t->admit_after;
}

/* Counts the ids that stay without a row and have an entry. Those left in the list change the
 * index. Shared structure lock held since the list was made. */
static void shoal_count_missed(shoal_store *t, const uint64_t *hashes, uint32_t version,
                               shoal_missed *m) {
    uint32_t left = 0;
    for (uint32_t k = 0; k < m->count; k++) {
        const uint64_t hash = hashes[m->places[k]];
        shoal_entry e = shoal_find_any(&t->index, hash);
        int counted = 0;
        if (e.bucket) {
            uint64_t *meta = &e.bucket->meta[e.lane], held;
            shoal_lock_row(meta, &held);
            counted = !shoal_is_admitted(t, held);
            if (counted) held = shoal_meta_used(shoal_preserve_count(t, hash, held), version);
            __atomic_store_n(meta, held, __ATOMIC_RELEASE);
        }
        if (!counted) m->places[left++] = m->places[k];
    }
    m->count = left;
}

/* ---- exclusive structure lock held ---- */

/* Has an id without a row counted as said; e: its entry, or none. */
static int shoal_set_count(shoal_store *t, uint64_t hash, shoal_entry e, uint32_t uses,
                           uint32_t version) {
    const uint64_t meta = shoal_count_meta(t->snapshots, uses, version);
    if (e.bucket) {
        shoal_preserve_count(t, hash, e.bucket->meta[e.lane]);
        e.bucket->meta[e.lane] = meta;
        return SHOAL_OK;
    }
    const uint64_t tag = (hash & ~SHOAL_PLACE_BITS) | SHOAL_COUNTS;
    if (!shoal_index_put(&t->index, hash, tag, meta, &t->arena).bucket) return SHOAL_NO_MEMORY;
    t->index.counting++;
    return SHOAL_OK;
}

/* An initial row for an id without one; e: its entry, which counts, or none. Returns its entry;
 * NULL bucket: no memory. scratch: dim floats. */
static shoal_entry shoal_make_row(shoal_store *t, uint64_t hash, shoal_entry e, float *scratch) {
    const uint32_t row = shoal_take_row(t);
    if (row == SHOAL_MAX_ROWS) return (shoal_entry){NULL, 0};
    if (e.bucket) {
        shoal_preserve_count(t, hash, e.bucket->meta[e.lane]);
        shoal_index_admit(&t->index, e, row);
    } else {
        e = shoal_index_add(&t->index, hash, row, 0, 0, &t->arena);
    }
    if (!e.bucket) {
        shoal_push_row(t, row);
        return e;
    }
    shoal_start_row(t, row, shoal_id_of(t, hash), scratch);
    if (t->snapshot) shoal_snapshot_lacks(t->snapshot, row); /* newer than it */
    if (t->census) shoal_census_excludes(t, &e.bucket->meta[e.lane]);
    return e;
}

/* Takes an entry away. 0: no memory, and nothing was done. */
static int shoal_drop(shoal_store *t, uint64_t hash, shoal_entry e) {
    uint64_t *meta = &e.bucket->meta[e.lane];
    if (shoal_live(e.bucket->tag[e.lane])) {
        shoal_preserve(t, meta, hash, *meta);
        if (!shoal_push_row(t, shoal_row_of(e.bucket->tag[e.lane], *meta))) return 0;
    } else {
        shoal_preserve_count(t, hash, *meta);
    }
    shoal_index_drop(&t->index, e);
    return 1;
}

/* ---- for checkpoints ---- */

/* Has ids counted as said; those with a row are left alone. Takes the lock itself. */
static int shoal_assign_counting(shoal_store *t, const int64_t *ids, const int64_t *steps,
                                 const uint32_t *uses, int64_t n) {
    int result = SHOAL_OK;
    for (int64_t base = 0; base < n && result == SHOAL_OK; base += SHOAL_INSERTS) {
        const int64_t end = base + SHOAL_INSERTS < n ? base + SHOAL_INSERTS : n;
        shoal_arena_prepare(&t->arena);
        pthread_rwlock_wrlock(&t->lock);
        for (int64_t i = base; i < end; i++)
            shoal_prefetch(shoal_home_bucket(&t->index, shoal_hash_of(t, ids[i])));
        for (int64_t i = base; i < end && result == SHOAL_OK; i++) {
            const uint64_t hash = shoal_hash_of(t, ids[i]);
            shoal_entry e = shoal_find_any(&t->index, hash);
            if (e.bucket && shoal_live(e.bucket->tag[e.lane])) continue;
            result = shoal_set_count(t, hash, e, uses[i], shoal_version_at(t, steps[i]));
        }
        pthread_rwlock_unlock(&t->lock);
    }
    return result;
}

static int64_t shoal_store_counting(shoal_store *t) {
    pthread_rwlock_rdlock(&t->lock);
    int64_t counting = t->index.counting;
    pthread_rwlock_unlock(&t->lock);
    return counting;
}

#endif
