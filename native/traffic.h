/* Batches: lookup, update, insert and assign over many ids.
 *
 * A batch is walked in its own order, SHOAL_BLOCK ids per hold of the structure
 * lock, through a pipeline of groups: bucket lines are prefetched two groups
 * ahead, rows one group ahead. Prefetches ask for the second-level cache only: it
 * has more misses in flight than the first, which was worth a quarter of the time
 * (lookup, dim 16: 45 ns to 33). A stage first computes a group's addresses and
 * then prefetches them in a loop of its own, so that many page walks overlap.
 */
#ifndef SHOAL_TRAFFIC_H
#define SHOAL_TRAFFIC_H

#include "snapshot.h"

enum {
    SHOAL_GROUP = 16,    /* ids per pipeline stage */
    SHOAL_BLOCK = 2048,  /* ids per hold of the shared lock */
    SHOAL_INSERTS = 256  /* ids per hold of the exclusive lock */
};

enum { SHOAL_OK = 0, SHOAL_NO_MEMORY = 1 };

/* What a batch does; members of other operations are NULL. */
typedef struct {
    int64_t n;
    const int64_t *ids;
    float *out;               /* lookup: [n, dim] */
    int use_default;          /* lookup: missing rows read default_value */
    const float *gradients;   /* update: [n, dim] */
    const shoal_step *step;
    uint32_t version;
    const float *values;      /* assign: [n, dim] */
    const float *slots[SHOAL_MAX_SLOTS]; /* assign: each [n, slot_width] or NULL */
    const uint32_t *versions, *uses;     /* assign: [n] or NULL */
} shoal_batch;

/* A group of rows on its way through the pipeline. */
typedef struct {
    int64_t count;
    uint64_t *metas[SHOAL_GROUP];
    char *records[SHOAL_GROUP];
    int64_t places[SHOAL_GROUP]; /* in the batch */
    uint64_t hashes[SHOAL_GROUP];
} shoal_group;

SHOAL_INLINE void shoal_prefetch_run(const char *start, size_t bytes) {
    const char *end = start + bytes;
    start = (const char *)((uintptr_t)start & ~(uintptr_t)(SHOAL_LINE - 1));
    for (; start < end; start += SHOAL_LINE) shoal_prefetch(start);
}

SHOAL_CLONES static void shoal_hash_ids(const int64_t *ids, uint64_t *hashes, int64_t n) {
    for (int64_t i = 0; i < n; i++) hashes[i] = shoal_mix64((uint64_t)ids[i]);
}

/* Home buckets of the next group, kept until it is searched. */
SHOAL_INLINE void shoal_approach(const shoal_store *t, const uint64_t *hashes, int64_t n,
                                 shoal_bucket **homes) {
    if (n > SHOAL_GROUP) n = SHOAL_GROUP;
    for (int64_t i = 0; i < n; i++) homes[i] = shoal_home_bucket(&t->index, hashes[i]);
    for (int64_t i = 0; i < n; i++) shoal_prefetch(homes[i]);
}

SHOAL_INLINE void shoal_group_add(shoal_group *g, const shoal_store *t, shoal_entry e,
                                  uint64_t hash, int64_t place) {
    uint64_t *meta = &e.bucket->meta[e.lane];
    g->metas[g->count] = meta;
    g->records[g->count] =
        shoal_record(t, shoal_row_of(e.bucket->tag[e.lane], __atomic_load_n(meta, __ATOMIC_RELAXED)));
    g->hashes[g->count] = hash;
    g->places[g->count++] = place;
}

/* ---- lookup ---- */

SHOAL_CLONES static void shoal_copy_rows(char *const *records, const int64_t *places,
                                         int64_t count, int64_t dim, float *out) {
    SHOAL_WITH_CONSTANT_DIM(dim, for (int64_t r = 0; r < count; r++)
                                memcpy(out + places[r] * n, records[r], (size_t)n * sizeof(float)))
}

SHOAL_INLINE void shoal_read_row(const shoal_store *t, const char *record, float *out) {
    shoal_decode(record, out, t->dim, t->format);
}

static void shoal_read_group(const shoal_store *t, const shoal_group *g, float *out) {
    uint64_t seen[SHOAL_GROUP];
    for (int64_t r = 0; r < g->count; r++) seen[r] = shoal_stable_meta(g->metas[r]);
    if (t->format == SHOAL_FLOAT32) {
        shoal_copy_rows(g->records, g->places, g->count, t->dim, out);
    } else {
        for (int64_t r = 0; r < g->count; r++)
            shoal_read_row(t, g->records[r], out + g->places[r] * t->dim);
    }
    for (int64_t r = 0; r < g->count; r++)
        while (!shoal_unchanged(g->metas[r], seen[r])) {
            seen[r] = shoal_stable_meta(g->metas[r]);
            shoal_read_row(t, g->records[r], out + g->places[r] * t->dim);
        }
}

/* What a row that does not exist reads; scratch: dim floats. */
static void shoal_read_missing(const shoal_store *t, const shoal_batch *b, uint64_t hash,
                               float *out, float *scratch) {
    if (b->use_default) {
        for (int64_t c = 0; c < t->dim; c++) out[c] = t->default_value;
        return;
    }
    shoal_fill_initial(&t->initial, (int64_t)shoal_unmix64(hash), out, t->dim);
    if (t->format != SHOAL_FLOAT32) { /* as it would be stored */
        shoal_encode(out, scratch, t->dim, t->format);
        shoal_decode(scratch, out, t->dim, t->format);
    }
}

SHOAL_CLONES static void shoal_lookup_block(const shoal_store *t, const shoal_batch *b, const uint64_t *hashes,
                               int64_t base, int64_t n, float *scratch) {
    shoal_group groups[2];
    groups[0].count = groups[1].count = 0;
    shoal_bucket *homes[4][SHOAL_GROUP];
    shoal_approach(t, hashes, n, homes[0]);
    shoal_approach(t, hashes + SHOAL_GROUP, n - SHOAL_GROUP, homes[1]);
    for (int64_t i = 0, turn = 0; i < n + SHOAL_GROUP; i += SHOAL_GROUP, turn++) {
        shoal_approach(t, hashes + i + 2 * SHOAL_GROUP, n - i - 2 * SHOAL_GROUP, homes[(turn + 2) & 3]);
        shoal_group *now = &groups[turn & 1], *before = &groups[~turn & 1];
        now->count = 0;
        for (int64_t j = i; j < n && j < i + SHOAL_GROUP; j++) {
            shoal_entry e = shoal_find_from(&t->index, homes[turn & 3][j - i], hashes[j]);
            if (SHOAL_LIKELY(e.bucket != NULL)) shoal_group_add(now, t, e, hashes[j], base + j);
            else shoal_read_missing(t, b, hashes[j], b->out + (base + j) * t->dim, scratch);
        }
        for (int64_t r = 0; r < now->count; r++) shoal_prefetch_run(now->records[r], t->value_bytes);
        shoal_read_group(t, before, b->out);
    }
}

/* ---- update ---- */

/* Rows [from, to) of a group, their locks held. */
static void shoal_apply_locked(shoal_store *t, const shoal_batch *b, shoal_apply_fn apply,
                               const shoal_group *g, const uint64_t *held, int64_t from,
                               int64_t to, float *scratch) {
    const int64_t dim = t->dim;
    if (SHOAL_LIKELY(t->format == SHOAL_FLOAT32 && shoal_is_plain(b->step))) {
        float *values[SHOAL_GROUP], *slots[SHOAL_GROUP];
        const float *gradients[SHOAL_GROUP];
        for (int64_t r = from; r < to; r++) {
            values[r] = (float *)g->records[r];
            slots[r] = (float *)(g->records[r] + t->slot_offset);
            gradients[r] = b->gradients + g->places[r] * dim;
        }
        apply(values + from, slots + from, gradients + from, to - from, dim, dim, b->step);
        return;
    }
    for (int64_t r = from; r < to; r++) {
        uint64_t noise = shoal_mix64(g->hashes[r] ^ t->noise_key) + (held[r] >> 33 & 0xFFFu);
        shoal_apply_row(apply, g->records[r], (float *)(g->records[r] + t->slot_offset),
                        b->gradients + g->places[r] * dim, dim, t->format,
                        shoal_mix64(noise + ((uint64_t)b->version << 12)), b->step, scratch);
    }
}

/* Locks as many rows as it can at once, waiting only for the first (so it holds
 * nothing while it waits, and cannot deadlock), and goes on with the others after. A
 * row that comes twice in the group is a lock of our own that stops the run. */
static void shoal_update_group(shoal_store *t, const shoal_batch *b, shoal_apply_fn apply,
                               const shoal_group *g, float *scratch) {
    uint64_t held[SHOAL_GROUP];
    for (int64_t from = 0, to; from < g->count; from = to) {
        shoal_lock_row(g->metas[from], &held[from]);
        for (to = from + 1; to < g->count && shoal_try_lock_row(g->metas[to], &held[to]);) to++;
        for (int64_t r = from; r < to; r++)
            shoal_preserve(t, g->metas[r], g->hashes[r], held[r]);
        shoal_apply_locked(t, b, apply, g, held, from, to, scratch);
        for (int64_t r = from; r < to; r++)
            __atomic_store_n(g->metas[r], shoal_meta_used(held[r], b->version), __ATOMIC_RELEASE);
    }
}

/* Updates ids in order up to the first missing one; returns how many were done. */
SHOAL_CLONES static int64_t shoal_update_block(shoal_store *t, const shoal_batch *b, const uint64_t *hashes,
                                  int64_t base, int64_t n, float *scratch) {
    const shoal_apply_fn apply = shoal_apply_of(b->step->rule);
    shoal_group groups[2];
    groups[0].count = groups[1].count = 0;
    shoal_bucket *homes[4][SHOAL_GROUP];
    shoal_approach(t, hashes, n, homes[0]);
    shoal_approach(t, hashes + SHOAL_GROUP, n - SHOAL_GROUP, homes[1]);
    for (int64_t i = 0, turn = 0; i < n + SHOAL_GROUP; i += SHOAL_GROUP, turn++) {
        shoal_approach(t, hashes + i + 2 * SHOAL_GROUP, n - i - 2 * SHOAL_GROUP, homes[(turn + 2) & 3]);
        shoal_group *now = &groups[turn & 1], *before = &groups[~turn & 1];
        now->count = 0;
        for (int64_t j = i; j < n && j < i + SHOAL_GROUP; j++) {
            shoal_entry e = shoal_find_from(&t->index, homes[turn & 3][j - i], hashes[j]);
            if (SHOAL_UNLIKELY(e.bucket == NULL)) {
                n = j; /* ends both loops after what is under way */
                break;
            }
            shoal_group_add(now, t, e, hashes[j], base + j);
        }
        for (int64_t r = 0; r < now->count; r++) shoal_prefetch_run(now->records[r], t->stride);
        shoal_update_group(t, b, apply, before, scratch);
    }
    return n;
}

/* ---- insert and assign, exclusively ---- */

static int shoal_insert_some(shoal_store *t, const shoal_batch *b, const uint64_t *hashes,
                             int64_t base, int64_t n, float *scratch) {
    int result = SHOAL_OK;
    shoal_arena_prepare(&t->arena);
    pthread_rwlock_wrlock(&t->lock);
    for (int64_t j = 0; j < n; j++) shoal_prefetch(shoal_home_bucket(&t->index, hashes[j]));
    for (int64_t j = 0; j < n && result == SHOAL_OK; j++) {
        shoal_entry e = shoal_find(&t->index, hashes[j]);
        if (!e.bucket) {
            e = shoal_insert(t, hashes[j], scratch);
            if (e.bucket && t->snapshot)
                shoal_snapshot_lacks(t->snapshot,
                                     shoal_row_of(e.bucket->tag[e.lane], e.bucket->meta[e.lane]));
        } else if (b->values) {
            shoal_preserve(t, &e.bucket->meta[e.lane], hashes[j], e.bucket->meta[e.lane]);
        }
        if (!e.bucket) {
            result = SHOAL_NO_MEMORY;
        } else if (b->values) {
            int64_t i = base + j;
            uint64_t *meta = &e.bucket->meta[e.lane];
            uint32_t row = shoal_row_of(e.bucket->tag[e.lane], *meta);
            char *record = shoal_record(t, row);
            float *slots = (float *)(record + t->slot_offset);
            shoal_encode(b->values + i * t->dim, record, t->dim, t->format);
            for (int k = 0; k < t->slots; k++)
                if (b->slots[k])
                    memcpy(slots + k * t->slot_width, b->slots[k] + i * t->slot_width,
                           (size_t)t->slot_width * 4);
            *meta = shoal_meta(row, b->uses ? b->uses[i] : shoal_uses_of(*meta),
                               b->versions ? b->versions[i] : shoal_version_of(*meta));
        }
    }
    pthread_rwlock_unlock(&t->lock);
    return result;
}

/* Runs a batch: a lookup if it has `out`, an update if it has gradients, else an
 * assignment (without values: an insertion). Returns SHOAL_OK or SHOAL_NO_MEMORY,
 * after which a part of the batch may have been done. */
static int shoal_run(shoal_store *t, const shoal_batch *b) {
    uint64_t hashes[SHOAL_BLOCK];
    int result = SHOAL_OK;
    float *scratch = malloc((size_t)t->dim * 8); /* 2 * dim floats */
    if (!scratch) return SHOAL_NO_MEMORY;
    for (int64_t base = 0; base < b->n && result == SHOAL_OK; base += SHOAL_BLOCK) {
        int64_t n = b->n - base < SHOAL_BLOCK ? b->n - base : SHOAL_BLOCK, done = 0;
        shoal_hash_ids(b->ids + base, hashes, n);
        while (done < n && result == SHOAL_OK) {
            if (b->out || b->gradients) {
                pthread_rwlock_rdlock(&t->lock);
                if (b->out) {
                    shoal_lookup_block(t, b, hashes, base, n, scratch);
                    done = n;
                } else {
                    done += shoal_update_block(t, b, hashes + done, base + done, n - done, scratch);
                }
                pthread_rwlock_unlock(&t->lock);
            }
            if (done == n) break;
            int64_t some = n - done < SHOAL_INSERTS ? n - done : SHOAL_INSERTS;
            result = shoal_insert_some(t, b, hashes + done, base + done, some, scratch);
            if (!b->gradients) done += some; /* an update goes on with these ids */
        }
    }
    free(scratch);
    return result;
}

#endif
