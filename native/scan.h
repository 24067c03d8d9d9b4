/* Removal, iteration and compaction of a row store.
 *
 * Iteration goes segment by segment and holds one stripe's lock for one segment
 * at a time. Its cursor is the segment's path read backwards (as in Redis SCAN):
 * in that order the halves of a split segment lie where their parent lay, so a
 * row present throughout is seen exactly once, however much the stripe grows or
 * is compacted between two calls.
 */
#ifndef SHOAL_SCAN_H
#define SHOAL_SCAN_H

#include "traffic.h"

SHOAL_INLINE uint32_t shoal_reversed(uint32_t x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
    return __builtin_bswap32(x);
}

/* ---- removal ---- */

static int shoal_free_row(shoal_stripe *s, uint32_t row) {
    if (s->free_count == s->free_room) {
        uint32_t room = s->free_room ? 2 * s->free_room : 16;
        uint32_t *rows = realloc(s->free_rows, room * sizeof *rows);
        if (!rows) return 0;
        s->free_rows = rows;
        s->free_room = room;
    }
    s->free_rows[s->free_count++] = row;
    return 1;
}

/* Returns the number of rows removed, or -1 without memory. */
static int64_t shoal_remove(shoal_store *t, const int64_t *ids, int64_t n) {
    int64_t removed = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t hash = shoal_mix64((uint64_t)ids[i]);
        shoal_stripe *s = &t->stripes[hash & (t->stripe_count - 1)];
        shoal_lock(s);
        shoal_entry e = shoal_find(&s->index, hash);
        int ready = 1;
        if (e.bucket) {
            ready = shoal_free_row(s, shoal_row_of(e.bucket, e.lane));
            if (ready) {
                shoal_index_drop(&s->index, e);
                removed++;
            }
        }
        shoal_unlock(s);
        if (!ready) return -1;
    }
    return removed;
}

static int shoal_contains(shoal_store *t, int64_t id) {
    uint64_t hash = shoal_mix64((uint64_t)id);
    shoal_stripe *s = &t->stripes[hash & (t->stripe_count - 1)];
    shoal_lock(s);
    int found = shoal_find(&s->index, hash).bucket != NULL;
    shoal_unlock(s);
    return found;
}

/* ---- iteration ---- */

typedef struct {
    uint32_t stripe;
    uint64_t position; /* in the reversed path space, 0..2^32 */
} shoal_cursor;

/* Where an export writes; slots each [.., slot_width]. */
typedef struct {
    int64_t *ids;
    float *values;
    float *slots[SHOAL_MAX_SLOTS];
    uint32_t *versions, *uses;
} shoal_rows;

enum { SHOAL_SEGMENT_ROWS = SHOAL_SEGMENT_BUCKETS * SHOAL_LANES };

/* Copies the next segment's rows to out[at..]; room for SHOAL_SEGMENT_ROWS more is
 * the caller's duty. Returns how many; -1 when the store is at its end. */
static int64_t shoal_export_segment(shoal_store *t, shoal_cursor *cursor, const shoal_rows *out,
                                    int64_t at) {
    while (cursor->stripe < t->stripe_count && cursor->position >> 32) {
        cursor->stripe++;
        cursor->position = 0;
    }
    if (cursor->stripe >= t->stripe_count) return -1;
    shoal_stripe *s = &t->stripes[cursor->stripe];
    int64_t start = at;
    shoal_lock(s);
    const shoal_index *x = &s->index;
    uint32_t place = shoal_reversed((uint32_t)cursor->position) & ((1u << x->depth) - 1u);
    uint32_t local = x->local_depth[place];
    const shoal_bucket *segment = x->directory[place];
    for (uint32_t i = 0; i <= x->bucket_mask; i++) {
        for (int k = 0; k < SHOAL_LANES; k++) {
            if (!shoal_live(segment[i].tag[k])) continue;
            uint64_t hash = (segment[i].tag[k] & ~0xFFULL) | (cursor->stripe & 0xFFu);
            /* after a compaction a segment may begin before the cursor */
            if (shoal_reversed(shoal_path(x, hash)) < cursor->position) continue;
            uint32_t row = shoal_row_of(&segment[i], k);
            const float *slots = shoal_slots(t, s, row);
            out->ids[at] = (int64_t)shoal_unmix64(hash);
            shoal_decode(shoal_value(t, s, row), out->values + at * t->dim, t->dim, t->format);
            for (int j = 0; j < t->slots; j++)
                memcpy(out->slots[j] + at * t->slot_width, slots + j * t->slot_width,
                       (size_t)t->slot_width * 4);
            out->versions[at] = shoal_version_of(segment[i].meta[k]);
            out->uses[at] = shoal_uses_of(segment[i].meta[k]);
            at++;
        }
    }
    uint64_t width = (uint64_t)1 << (32 - local);
    cursor->position = (cursor->position / width + 1) * width;
    shoal_unlock(s);
    return at - start;
}

/* ---- compaction ---- */

/* Moves rows numbered from `live` on into free ones below it. */
static int shoal_close_gaps(shoal_store *t, shoal_stripe *s) {
    const uint32_t live = s->index.live;
    uint32_t gap = 0;
    uint8_t *taken = calloc(s->next_row ? s->next_row : 1, 1);
    if (!taken) return 0;
    memset(taken, 1, s->next_row);
    for (uint32_t i = 0; i < s->free_count; i++) taken[s->free_rows[i]] = 0;
    for (uint32_t p = 0; p < 1u << s->index.depth; p++) {
        if (p >> s->index.local_depth[p]) continue; /* a repeated segment */
        for (uint32_t i = 0; i <= s->index.bucket_mask; i++)
            for (int k = 0; k < SHOAL_LANES; k++) {
                shoal_bucket *b = s->index.directory[p] + i;
                if (!shoal_live(b->tag[k])) continue;
                uint32_t row = shoal_row_of(b, k);
                if (row < live) continue;
                while (taken[gap]) gap++;
                memcpy(shoal_value(t, s, gap), shoal_value(t, s, row), t->value_stride);
                memcpy(shoal_slots(t, s, gap), shoal_slots(t, s, row), t->slot_stride);
                taken[gap] = 1;
                uint64_t meta = b->meta[k];
                b->tag[k] = (b->tag[k] & ~0xFFULL) | (uint64_t)(gap >> 16) << 1 | 1u;
                b->meta[k] = shoal_meta(gap, shoal_uses_of(meta), shoal_version_of(meta));
            }
    }
    free(taken);
    return 1;
}

/* Rebuilds the index at the size its entries need, without tombs. */
static int shoal_rebuild_index(shoal_store *t, shoal_stripe *s) {
    shoal_index fresh;
    shoal_index *old = &s->index;
    int ready = shoal_index_init(&fresh, old->shift);
    const uint64_t stripe = (uint64_t)(s - t->stripes) & 0xFFu;
    for (uint32_t p = 0; ready && p < 1u << old->depth; p++) {
        if (p >> old->local_depth[p]) continue;
        for (uint32_t i = 0; ready && i <= old->bucket_mask; i++)
            for (int k = 0; ready && k < SHOAL_LANES; k++) {
                const shoal_bucket *b = old->directory[p] + i;
                if (!shoal_live(b->tag[k])) continue;
                uint64_t meta = b->meta[k], hash = (b->tag[k] & ~0xFFULL) | stripe;
                ready = shoal_index_add(&fresh, stripe, hash, shoal_row_of(b, k),
                                        shoal_uses_of(meta), shoal_version_of(meta),
                                        &t->arena).bucket != NULL;
            }
    }
    shoal_index *unwanted = ready ? old : &fresh;
    if (unwanted->bucket_mask + 1 == SHOAL_SEGMENT_BUCKETS)
        for (uint32_t p = 0; p < 1u << unwanted->depth; p++)
            if (!(p >> unwanted->local_depth[p]))
                shoal_arena_give(&t->arena, SHOAL_SEGMENT, unwanted->directory[p]);
    shoal_index_destroy(unwanted);
    if (ready) *old = fresh;
    return ready;
}

/* One stripe at a time: fills the gaps that removal left, gives the chunks at the
 * end back, rebuilds the index. The only operation that moves rows. */
static int shoal_compact(shoal_store *t) {
    for (uint32_t i = 0; i < t->stripe_count; i++) {
        shoal_stripe *s = &t->stripes[i];
        int ready = 1;
        shoal_lock(s);
        if (s->free_count) {
            ready = shoal_close_gaps(t, s);
            if (ready) { /* every row number is below the count of entries now */
                s->next_row = s->index.live;
                s->free_count = s->free_room = 0;
                free(s->free_rows);
                s->free_rows = NULL;
                uint32_t chunks = (s->next_row + (1u << t->chunk_shift) - 1u) >> t->chunk_shift;
                while (s->chunk_count > (chunks ? chunks : 1))
                    shoal_arena_give(&t->arena, SHOAL_CHUNK, s->chunks[--s->chunk_count]);
                ready = shoal_rebuild_index(t, s);
            }
        }
        shoal_unlock(s);
        if (!ready) return SHOAL_NO_MEMORY;
    }
    return SHOAL_OK;
}

#endif
