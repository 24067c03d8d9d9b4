/* Batches: lookup, update and insertion over many ids.
 *
 * A batch is walked in its own order, SHOAL_BLOCK ids per hold of the structure
 * lock, through a pipeline: each turn of the loop prefetches one id's home bucket,
 * searches the bucket of an earlier one and prefetches its row, and works on the row
 * of a still earlier one. What was measured on the way (lookup, dim 16, 10 million
 * rows, a quiet machine):
 * - prefetching into the second-level cache, which has more misses in flight than
 *   the first: 45 ns to 33;
 * - one id at a time instead of groups of 16, so that the memory always has work, and a
 *   stage of its own for the one id in fourteen that is not in its home bucket, where
 *   searching on at once waits for memory in the middle of everything: 33 ns to 22;
 * - fewer instructions (pipeline.h; locals instead of members): 22 ns to 19.
 * Updates: the lock bit costs 3 to 6 ns a row, the version and use count nothing that
 * can be measured, since the bucket's line is there already.
 */
#ifndef SHOAL_TRAFFIC_H
#define SHOAL_TRAFFIC_H

#include "assign.h"

enum { SHOAL_GROUP = 8 }; /* rows locked together */

/* Where an id is in the pipeline, in turns before its row is worked on. Late: its row is
 * prefetched in the turn of SHOAL_RESOLVE, not as soon as its bucket is searched. Both what
 * was found and its row are kept until the row was worked on, so SHOAL_PROBE and
 * SHOAL_TOGETHER fit the ring. */
enum { SHOAL_RING = 64, SHOAL_FARTHEST = 56 };
#define SHOAL_APPROACH(late) ((late) ? SHOAL_FARTHEST : 40)
#define SHOAL_PROBE(late) ((late) ? 40 : 24)
#define SHOAL_RESOLVE(late) ((late) ? 24 : 12)

/* Updates of wide rows in a large table prefetch late, and work on SHOAL_TOGETHER rows at a
 * time: up to 1.4 times as fast (Adam, dim 64, 2 million rows). Prefetches whose address
 * waits for the bucket's line, and a wide row's arithmetic, keep back the finding of others.
 * In what the caches hold it is slower, and lookups gain nothing. */
enum { SHOAL_LARGE = 64 << 20, SHOAL_TOGETHER = 16 }; /* bytes, rows */

SHOAL_INLINE int shoal_is_large(const shoal_store *t) {
    return (size_t)t->next_row * t->stride >= SHOAL_LARGE;
}

/* The ids under way; place j of the block is at j % SHOAL_RING. */
typedef struct {
    shoal_bucket *homes[SHOAL_RING];
    uint64_t *metas[SHOAL_RING]; /* NULL: no such row */
    char *records[SHOAL_RING];   /* SHOAL_PENDING: not in the home bucket */
} shoal_ring;

#define SHOAL_PENDING ((char *)1)

/* What of a store the pipeline needs, in locals: the compiler would load the store's
 * own members again after every write. Constant while the structure lock is held. */
typedef struct {
    const shoal_index *index;
    const uint64_t *directory;
    uint32_t place_mask;
    char *const *chunks;
    uint32_t chunk_shift, row_mask;
    size_t stride, bytes; /* of a record; of it, to be prefetched */
} shoal_view;

SHOAL_INLINE shoal_view shoal_view_of(const shoal_store *t, size_t stride, size_t bytes) {
    return (shoal_view){&t->index, t->index.directory, (uint32_t)((1ULL << t->index.depth) - 1u),
                        t->chunks, t->chunk_shift, (1u << t->chunk_shift) - 1u, stride, bytes};
}

SHOAL_INLINE void shoal_approach(const shoal_view *v, shoal_ring *ring, uint64_t hash, uint64_t j) {
    uint64_t word = v->directory[(uint32_t)hash & v->place_mask];
    shoal_bucket *home = shoal_segment(word) + (shoal_home(hash) & shoal_mask(word));
    ring->homes[j % SHOAL_RING] = home;
    shoal_prefetch(home);
}

SHOAL_INLINE void shoal_prefetch_row(const shoal_view *v, const char *record) {
    shoal_prefetch(record);
    if (v->stride % SHOAL_LINE == 0) { /* chunks begin with a line, so all records do */
        for (size_t at = SHOAL_LINE; at < v->bytes; at += SHOAL_LINE) shoal_prefetch(record + at);
        return;
    }
    const char *next = (const char *)((uintptr_t)(record + SHOAL_LINE) & ~(uintptr_t)(SHOAL_LINE - 1));
    for (; next < record + v->bytes; next += SHOAL_LINE) shoal_prefetch(next);
}

SHOAL_INLINE void shoal_settle(const shoal_view *v, shoal_ring *ring, shoal_bucket *b, int lane,
                               uint64_t j, const int late) {
    uint64_t *meta = &b->meta[lane];
    uint32_t row = shoal_row_of(b->tag[lane], __atomic_load_n(meta, __ATOMIC_RELAXED));
    char *record = v->chunks[row >> v->chunk_shift] + (row & v->row_mask) * v->stride;
    ring->metas[j % SHOAL_RING] = meta;
    ring->records[j % SHOAL_RING] = record;
    if (!late) shoal_prefetch_row(v, record);
}

/* Searches on for an id that is not in its home bucket. */
SHOAL_INLINE void shoal_resolve(const shoal_view *v, shoal_ring *ring, uint64_t hash, uint64_t j,
                                const int late) {
    if (SHOAL_UNLIKELY(ring->records[j % SHOAL_RING] == SHOAL_PENDING)) {
        shoal_entry e = shoal_find(v->index, hash);
        if (!e.bucket) return;
        shoal_settle(v, ring, e.bucket, e.lane, j, late);
    }
    if (late) shoal_prefetch_row(v, ring->records[j % SHOAL_RING]);
}

SHOAL_CLONES static void shoal_hash_ids(const int64_t *ids, uint64_t *hashes, int64_t n,
                                        const uint64_t key) {
    for (int64_t i = 0; i < n; i++) hashes[i] = shoal_mix64((uint64_t)ids[i] ^ key);
}

/* ---- lookup ---- */

/* What a row that does not exist reads; scratch: dim floats. */
static void shoal_read_missing(const shoal_store *t, const shoal_batch *b, uint64_t hash,
                               float *out, float *scratch) {
    if (b->reads) __atomic_fetch_add(&b->reads[1], 1, __ATOMIC_RELAXED);
    if (b->use_default) {
        for (int64_t c = 0; c < t->dim; c++) out[c] = t->default_value;
        return;
    }
    shoal_fill_initial(&t->initial, shoal_id_of(t, hash), out, t->dim);
    if (t->format != SHOAL_FLOAT32) { /* as it would be stored */
        shoal_encode(out, scratch, t->dim, t->format);
        shoal_decode(scratch, out, t->dim, t->format);
    }
}

/* ---- update ---- */

/* Rows that are worked on together: locks as many as it can at once, waiting only for
 * the first (so it holds nothing while it waits, and cannot deadlock), and goes on with
 * the others after. A row that comes twice is a lock of our own that stops the run. */
static inline void shoal_update_group(shoal_store *t, const shoal_batch *b,
                                      shoal_apply_fn apply, int plain, uint64_t *const *metas,
                                      char *const *records, const uint64_t *hashes,
                                      const float *gradients, uint64_t count, float *scratch) {
    uint64_t held[SHOAL_GROUP]; /* headers as they were when locked */
    for (uint64_t from = 0, to; from < count; from = to) {
        shoal_lock_row(metas[from], &held[from]);
        for (to = from + 1; to < count && shoal_try_lock_row(metas[to], &held[to]);) to++;
        /* The locks are seen before what follows: taking one orders what comes after it
         * with the reading of the header only, so that on AArch64 a row's new values could
         * be seen before its lock, and by a reader as one whole row with the old ones. */
        __atomic_thread_fence(__ATOMIC_RELEASE);
        for (uint64_t r = from; r < to; r++) shoal_preserve(t, metas[r], hashes[r], held[r]);
        const float *g = gradients + from * (uint64_t)t->dim;
        if (SHOAL_LIKELY(plain)) {
            apply((float *const *)records + from, t->slot_offset / 4, g, (int64_t)(to - from),
                  t->dim, t->dim, b->step);
        } else {
            for (uint64_t r = from; r < to; r++, g += t->dim) {
                /* By the id and not its place: the same in every process. */
                const uint64_t own = (uint64_t)shoal_id_of(t, hashes[r]) ^ t->noise_key;
                /* The count as files have it, which ends: from there on the step tells pushes apart. */
                uint64_t noise = shoal_mix64(own) + shoal_uses_of(held[r]);
                shoal_apply_row(apply, records[r], t->slot_offset, g, t->dim, t->format,
                                shoal_mix64(noise + ((uint64_t)b->number << 12)), b->step, scratch);
            }
        }
        for (uint64_t r = from; r < to; r++)
            __atomic_store_n(metas[r], shoal_meta_used(held[r], b->version), __ATOMIC_RELEASE);
    }
}

/* The same where some of a group have no row: notes them. place: of the first in its block. */
static __attribute__((noinline)) void shoal_update_present(
    shoal_store *t, const shoal_batch *b, shoal_apply_fn apply, int plain, uint64_t *const *metas,
    char *const *records, const uint64_t *hashes, const float *gradients, uint64_t count,
    uint64_t place, float *scratch) {
    for (uint64_t from = 0, to; from < count; from = to + 1) {
        for (to = from; to < count && metas[to]; to++) {}
        shoal_update_group(t, b, apply, plain, metas + from, records + from, hashes + from,
                           gradients + from * (uint64_t)t->dim, to - from, scratch);
        if (to < count) shoal_miss(b->missed, place + to);
    }
}

/* ---- the pipeline, once per instruction set ---- */

#ifdef SHOAL_HAS_LEVELS
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,avx2,bmi,bmi2,lzcnt,popcnt")
SHOAL_INLINE unsigned shoal_match_v4(const shoal_bucket *b, uint64_t hash) {
    __m256i tags = _mm256_load_si256((const __m256i *)b->tag);
    __m256i differ = _mm256_xor_si256(tags, _mm256_set1_epi64x((int64_t)(hash | 1u)));
    return _mm256_testn_epi64_mask(differ, _mm256_set1_epi64x(-(int64_t)SHOAL_PLACE_BITS));
}
#define SHOAL_VARIANT(name) shoal_##name##_v4
#define SHOAL_MATCH shoal_match_v4
#include "pipeline.h"
#undef SHOAL_VARIANT
#undef SHOAL_MATCH
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
SHOAL_INLINE unsigned shoal_match_v3(const shoal_bucket *b, uint64_t hash) {
    __m256i tags = _mm256_load_si256((const __m256i *)b->tag);
    __m256i masked = _mm256_or_si256(tags, _mm256_set1_epi64x((int64_t)SHOAL_PLACE_BITS - 1));
    __m256i want = _mm256_set1_epi64x((int64_t)(hash | SHOAL_PLACE_BITS));
    return (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(masked, want)));
}
#define SHOAL_VARIANT(name) shoal_##name##_v3
#define SHOAL_MATCH shoal_match_v3
#include "pipeline.h"
#undef SHOAL_VARIANT
#undef SHOAL_MATCH
#pragma GCC pop_options
#endif

#define SHOAL_VARIANT(name) shoal_##name##_plain
#define SHOAL_MATCH shoal_match
#include "pipeline.h"
#undef SHOAL_VARIANT
#undef SHOAL_MATCH

typedef void (*shoal_lookup_fn)(const shoal_store *, const shoal_batch *, const uint64_t *, float *,
                                uint64_t, float *);
typedef uint64_t (*shoal_update_fn)(shoal_store *, const shoal_batch *, const uint64_t *,
                                    const float *, uint64_t, int, float *);

/* The level of x86-64 whose code runs, 4, 3 or 0. */
static int shoal_instruction_set(void) {
#ifdef SHOAL_HAS_LEVELS
    if (__builtin_cpu_supports("x86-64-v4")) return 4;
    if (__builtin_cpu_supports("x86-64-v3")) return 3;
#endif
    return 0;
}

static shoal_lookup_fn shoal_lookup_block(void) {
#ifdef SHOAL_HAS_LEVELS
    if (shoal_instruction_set() == 4) return shoal_lookup_block_v4;
    if (shoal_instruction_set() == 3) return shoal_lookup_block_v3;
#endif
    return shoal_lookup_block_plain;
}

static shoal_update_fn shoal_update_block(void) {
#ifdef SHOAL_HAS_LEVELS
    if (shoal_instruction_set() == 4) return shoal_update_block_v4;
    if (shoal_instruction_set() == 3) return shoal_update_block_v3;
#endif
    return shoal_update_block_plain;
}

/* ---- insert, exclusively ---- */

static int shoal_insert_some(shoal_store *t, const uint64_t *hashes, int64_t n, float *scratch) {
    int result = SHOAL_OK;
    shoal_arena_prepare(&t->arena);
    pthread_rwlock_wrlock(&t->lock);
    for (int64_t j = 0; j < n; j++) shoal_prefetch(shoal_home_bucket(&t->index, hashes[j]));
    for (int64_t j = 0; j < n && result == SHOAL_OK; j++) {
        shoal_entry e = shoal_find_any(&t->index, hashes[j]);
        if (e.bucket && shoal_live(e.bucket->tag[e.lane])) continue;
        if (!shoal_make_row(t, hashes[j], e, scratch).bucket) result = SHOAL_NO_MEMORY;
    }
    pthread_rwlock_unlock(&t->lock);
    return result;
}

/* ---- admission, exclusively ---- */

/* One use of an id that had no row a moment ago: counts it, or makes its row and updates that.
 * So nobody sees a row without the update that made it. */
static int shoal_admit(shoal_store *t, const shoal_batch *b, uint64_t hash, const float *gradient,
                       float *scratch) {
    shoal_entry e = shoal_find_any(&t->index, hash);
    if (!e.bucket || !shoal_live(e.bucket->tag[e.lane])) {
        const uint64_t header = e.bucket ? e.bucket->meta[e.lane] : 0;
        if (!shoal_is_admitted(t, header))
            return shoal_set_count(t, hash, e, shoal_uses_of(header) + 1, b->version);
        e = shoal_make_row(t, hash, e, scratch);
        if (!e.bucket) return SHOAL_NO_MEMORY;
    }
    uint64_t *meta = &e.bucket->meta[e.lane];
    char *record = shoal_record(t, shoal_row_of(e.bucket->tag[e.lane], *meta));
    const int plain = t->format == SHOAL_FLOAT32 && shoal_is_plain(b->step);
    shoal_update_group(t, b, shoal_apply_of(b->step->rule), plain, &meta, &record, &hash, gradient,
                       1, scratch);
    return SHOAL_OK;
}

/* The ids that an update of a block has missed and that were not just counted. gradients: the
 * block's. */
static int shoal_admit_missed(shoal_store *t, shoal_batch *b, const uint64_t *hashes,
                              const float *gradients, float *scratch) {
    const shoal_missed *m = b->missed;
    int result = SHOAL_OK;
    for (uint32_t base = 0; base < m->count && result == SHOAL_OK; base += SHOAL_INSERTS) {
        const uint32_t end = base + SHOAL_INSERTS < m->count ? base + SHOAL_INSERTS : m->count;
        shoal_arena_prepare(&t->arena);
        pthread_rwlock_wrlock(&t->lock);
        b->version = shoal_version_at(t, b->number);
        for (uint32_t k = base; k < end; k++)
            shoal_prefetch(shoal_home_bucket(&t->index, hashes[m->places[k]]));
        for (uint32_t k = base; k < end && result == SHOAL_OK; k++)
            result = shoal_admit(t, b, hashes[m->places[k]],
                                 gradients + (int64_t)m->places[k] * t->dim, scratch);
        pthread_rwlock_unlock(&t->lock);
    }
    return result;
}

/* Ids of an update whose rows are to be made later, by their places in the whole batch. */
typedef struct {
    const int64_t *ids; /* of the whole batch */
    int64_t *places;    /* room for all */
    int64_t count;
} shoal_later;

/* Has the missed ones of a block be made later; first: the block's first id. */
static void shoal_put_off(shoal_later *later, const int64_t *first, shoal_missed *m) {
    int64_t at = __atomic_fetch_add(&later->count, m->count, __ATOMIC_RELAXED);
    for (uint32_t k = 0; k < m->count; k++) later->places[at++] = first - later->ids + m->places[k];
    m->count = 0;
}

/* Runs a part of a batch, or all of it. owner: the batch. later: takes ids that would need the structure
 * lock exclusively, of an update; or NULL. */
static int shoal_run_part(shoal_store *t, const shoal_batch *given, const void *owner, shoal_later *later) {
    uint64_t hashes[SHOAL_BLOCK + SHOAL_FARTHEST];
    shoal_missed missed;
    shoal_batch batch = *given, *const b = &batch;
    int result = SHOAL_OK;
    missed.count = 0;
    batch.missed = t->admit_after > 1 || later ? &missed : NULL;
    const shoal_lookup_fn lookup = shoal_lookup_block();
    const shoal_update_fn update = shoal_update_block();
    float *scratch = malloc((size_t)t->dim * 8); /* 2 * dim floats */
    if (!scratch) return SHOAL_NO_MEMORY;
    for (int64_t base = 0; base < b->n && result == SHOAL_OK; base += SHOAL_BLOCK) {
        int64_t n = b->n - base < SHOAL_BLOCK ? b->n - base : SHOAL_BLOCK, done = 0;
        shoal_hash_ids(b->ids + base, hashes, n, t->place_key);
        for (int64_t j = 0; j < SHOAL_FARTHEST; j++) hashes[n + j] = hashes[n - 1];
        if (b->values) {
            result = shoal_assign_block(t, b, hashes, base, n);
            continue;
        }
        while (done < n && result == SHOAL_OK) {
            if (b->out || b->gradients) {
                pthread_rwlock_rdlock(&t->lock);
                if (b->out) {
                    lookup(t, b, hashes, b->out + base * t->dim, (uint64_t)n, scratch);
                    if (b->reads) __atomic_fetch_add(&b->reads[0], n, __ATOMIC_RELAXED);
                    done = n;
                } else {
                    const int alone = shoal_begin_updates(t, owner);
                    b->version = shoal_version_at(t, b->number);
                    done += (int64_t)update(t, b, hashes + done,
                                            b->gradients + (base + done) * t->dim,
                                            (uint64_t)(n - done), alone, scratch);
                    shoal_leave_updaters(&t->updaters);
                    if (missed.count && t->admit_after > 1)
                        shoal_count_missed(t, hashes, b->version, &missed);
                }
                pthread_rwlock_unlock(&t->lock);
            }
            if (missed.count && later) shoal_put_off(later, b->ids + base, &missed);
            if (missed.count) {
                result = shoal_admit_missed(t, b, hashes, b->gradients + base * t->dim, scratch);
                missed.count = 0;
            }
            if (done == n) break;
            int64_t some = n - done < SHOAL_INSERTS ? n - done : SHOAL_INSERTS;
            result = shoal_insert_some(t, hashes + done, some, scratch);
            if (!b->gradients) done += some; /* an update goes on with these ids */
        }
    }
    free(scratch);
    return result;
}

#endif
