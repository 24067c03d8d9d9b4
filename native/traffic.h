/* Batches: lookup, update, insert and assign over many ids.
 *
 * A batch is sorted by stripe (a stable counting sort of the hashes), then walked
 * window by window: the stripes of a window are locked in ascending order, which
 * cannot deadlock, and its ids run through a pipeline of groups: bucket lines are
 * prefetched two groups ahead, rows and gradients one group ahead. Equal ids fall
 * into the same stripe in their order of arrival, so repeated ids are well defined.
 */
#ifndef SHOAL_TRAFFIC_H
#define SHOAL_TRAFFIC_H

#include "store.h"

enum {
    SHOAL_GROUP = 16,          /* ids per pipeline stage */
    SHOAL_WINDOW = 512,        /* ids whose stripes are locked together, about */
    SHOAL_BLOCK = 1 << 16      /* ids sorted at a time: bounds the scratch memory */
};

enum { SHOAL_OK = 0, SHOAL_NO_MEMORY = 1 };

/* Scratch of one call: a block's hashes and positions in stripe order. */
typedef struct {
    uint64_t *hashes;    /* [block] as read */
    uint64_t *sorted;    /* [block] in stripe order */
    uint32_t *positions; /* [block] index into the block, in stripe order */
    uint32_t *ends;      /* [stripes + 1] where each stripe's run starts */
    float *floats;       /* [2 * dim] */
} shoal_scratch;

static int shoal_scratch_init(shoal_scratch *c, const shoal_store *t, int64_t n) {
    size_t block = n < SHOAL_BLOCK ? (size_t)n : SHOAL_BLOCK;
    size_t bytes = block * (8 + 8 + 4) + ((size_t)t->stripe_count + 1) * 4 + (size_t)t->dim * 8 + 64;
    char *memory = malloc(bytes);
    c->hashes = (uint64_t *)memory;
    if (!memory) return 0;
    c->sorted = c->hashes + block;
    c->floats = (float *)(c->sorted + block);
    c->positions = (uint32_t *)(c->floats + 2 * t->dim);
    c->ends = c->positions + block;
    return 1;
}

static void shoal_scratch_free(shoal_scratch *c) { free(c->hashes); }

SHOAL_CLONES static void shoal_hash_ids(const int64_t *ids, uint64_t *hashes, int64_t n) {
    for (int64_t i = 0; i < n; i++) hashes[i] = shoal_mix64((uint64_t)ids[i]);
}

/* Sorts n <= SHOAL_BLOCK ids by stripe; ends[k]..ends[k + 1] is stripe k's run. */
static void shoal_sort(const shoal_store *t, shoal_scratch *c, const int64_t *ids, int64_t n) {
    const uint64_t mask = t->stripe_count - 1;
    uint32_t *start = c->ends;
    shoal_hash_ids(ids, c->hashes, n);
    memset(start, 0, ((size_t)t->stripe_count + 1) * sizeof *start);
    for (int64_t i = 0; i < n; i++) start[(c->hashes[i] & mask) + 1]++;
    for (uint32_t k = 0; k < t->stripe_count; k++) start[k + 1] += start[k];
    for (int64_t i = 0; i < n; i++) {
        uint32_t at = start[c->hashes[i] & mask]++;
        c->sorted[at] = c->hashes[i];
        c->positions[at] = (uint32_t)i;
    }
    for (uint32_t k = t->stripe_count; k > 0; k--) start[k] = start[k - 1];
    start[0] = 0;
}

SHOAL_INLINE void shoal_prefetch_run(const void *start, size_t bytes, int write) {
    const char *p = (const char *)start, *end = p + bytes;
    for (p = (const char *)((uintptr_t)p & ~(uintptr_t)(SHOAL_LINE - 1)); p < end; p += SHOAL_LINE) {
        if (write) shoal_prefetch_write(p);
        else shoal_prefetch(p);
    }
}

SHOAL_INLINE void shoal_prefetch_buckets(const shoal_store *t, const uint64_t *hashes, int64_t n) {
    const void *lines[2 * SHOAL_GROUP];
    for (int64_t i = 0; i < n; i++) {
        const shoal_index *x = &t->stripes[hashes[i] & (t->stripe_count - 1)].index;
        lines[i] = shoal_segment(x, hashes[i]) + shoal_place(x, hashes[i]);
    }
    for (int64_t i = 0; i < n; i++) shoal_prefetch(lines[i]);
}

/* One window's stripes [first, last): those with ids, locked ascending. */
static void shoal_lock_window(shoal_store *t, const uint32_t *ends, uint32_t first, uint32_t last) {
    for (uint32_t k = first; k < last; k++)
        if (ends[k + 1] > ends[k]) shoal_lock(&t->stripes[k]);
}

static void shoal_unlock_window(shoal_store *t, const uint32_t *ends, uint32_t first, uint32_t last) {
    for (uint32_t k = first; k < last; k++)
        if (ends[k + 1] > ends[k]) shoal_unlock(&t->stripes[k]);
}

static uint32_t shoal_window_end(const shoal_store *t, const uint32_t *ends, uint32_t first) {
    uint32_t last = first + 1;
    while (last < t->stripe_count && ends[last + 1] - ends[first] <= SHOAL_WINDOW) last++;
    return last;
}

/* What a batch does; the unused members are NULL. Arrays are those of the call. */
typedef struct {
    int64_t n;
    const int64_t *ids;
    float *out;               /* lookup: [n, dim] */
    const float *gradients;   /* update: [n, dim] */
    int use_default;          /* lookup: missing rows read default_value */
    const shoal_step *step;
    uint32_t version;
    const float *values;      /* assign: [n, dim] */
    const float *slots[SHOAL_MAX_SLOTS]; /* assign: each [n, slot_width] or NULL */
    const uint32_t *versions, *uses;     /* assign: [n] or NULL */
} shoal_batch;

SHOAL_CLONES static void shoal_copy_rows(float *const *out, char *const *rows, int64_t count,
                                         int64_t dim) {
    SHOAL_WITH_CONSTANT_DIM(dim, for (int64_t r = 0; r < count; r++)
                                memcpy(out[r], rows[r], (size_t)n * sizeof(float)))
}

/* ---- lookup ---- */

static void shoal_lookup_window(shoal_store *t, const shoal_batch *b, const shoal_scratch *c,
                                int64_t base, int64_t begin, int64_t end) {
    const uint64_t mask = t->stripe_count - 1;
    const uint64_t *hashes = c->sorted;
    const uint32_t *positions = c->positions + 0;
    char *rows[2][SHOAL_GROUP];
    float *outs[2][SHOAL_GROUP];
    int64_t found[2] = {0, 0};
    shoal_prefetch_buckets(t, hashes + begin, end - begin < 2 * SHOAL_GROUP ? end - begin : 2 * SHOAL_GROUP);
    for (int64_t i = begin, turn = 0; i < end + SHOAL_GROUP; i += SHOAL_GROUP, turn ^= 1) {
        int64_t ahead = i + 2 * SHOAL_GROUP;
        if (ahead < end)
            shoal_prefetch_buckets(t, hashes + ahead, end - ahead < SHOAL_GROUP ? end - ahead : SHOAL_GROUP);
        int64_t stop = i + SHOAL_GROUP < end ? i + SHOAL_GROUP : end;
        found[turn] = 0;
        for (int64_t j = i; j < stop; j++) {
            shoal_stripe *s = &t->stripes[hashes[j] & mask];
            float *out = b->out + (base + positions[j]) * t->dim;
            shoal_entry e = shoal_find(&s->index, hashes[j]);
            if (SHOAL_LIKELY(e.bucket != NULL)) {
                char *row = shoal_value(t, s, shoal_row_of(e.bucket, e.lane));
                rows[turn][found[turn]] = row;
                outs[turn][found[turn]++] = out;
            } else if (b->use_default) {
                for (int64_t k = 0; k < t->dim; k++) out[k] = t->default_value;
            } else {
                shoal_fill_initial(&t->initial, (int64_t)shoal_unmix64(hashes[j]), out, t->dim);
                if (t->format != SHOAL_FLOAT32) { /* what the row would read once stored */
                    uint16_t *half = (uint16_t *)c->floats;
                    shoal_encode(out, half, t->dim, t->format);
                    shoal_decode(half, out, t->dim, t->format);
                }
            }
        }
        for (int64_t r = 0; r < found[turn]; r++) shoal_prefetch_run(rows[turn][r], t->value_stride, 0);
        for (int64_t r = 0; r < found[turn]; r++) shoal_prefetch_run(outs[turn][r], (size_t)t->dim * 4, 1);
        int64_t before = turn ^ 1, count = found[before];
        found[before] = 0;
        if (t->format == SHOAL_FLOAT32) {
            shoal_copy_rows(outs[before], rows[before], count, t->dim);
        } else {
            for (int64_t r = 0; r < count; r++)
                shoal_decode(rows[before][r], outs[before][r], t->dim, t->format);
        }
    }
}

/* ---- update ---- */

static int shoal_update_window(shoal_store *t, const shoal_batch *b, const shoal_scratch *c,
                               int64_t base, int64_t begin, int64_t end) {
    const uint64_t mask = t->stripe_count - 1;
    const uint64_t *hashes = c->sorted;
    const shoal_apply_fn apply = shoal_apply_of(b->step->rule);
    const int plain = t->format == SHOAL_FLOAT32 && shoal_is_plain(b->step);
    float *values[2][SHOAL_GROUP], *slots[2][SHOAL_GROUP];
    const float *gradients[2][SHOAL_GROUP];
    uint64_t noise[2][SHOAL_GROUP];
    int64_t found[2] = {0, 0};
    int failed = 0;
    shoal_prefetch_buckets(t, hashes + begin, end - begin < 2 * SHOAL_GROUP ? end - begin : 2 * SHOAL_GROUP);
    for (int64_t i = begin, turn = 0; i < end + SHOAL_GROUP; i += SHOAL_GROUP, turn ^= 1) {
        int64_t ahead = i + 2 * SHOAL_GROUP;
        if (ahead < end)
            shoal_prefetch_buckets(t, hashes + ahead, end - ahead < SHOAL_GROUP ? end - ahead : SHOAL_GROUP);
        int64_t stop = i + SHOAL_GROUP < end ? i + SHOAL_GROUP : end;
        int64_t count = 0;
        for (int64_t j = i; j < stop && !failed; j++, count++) {
            shoal_stripe *s = &t->stripes[hashes[j] & mask];
            shoal_entry e = shoal_find(&s->index, hashes[j]);
            if (SHOAL_UNLIKELY(e.bucket == NULL)) {
                e = shoal_insert(t, s, hashes[j], c->floats);
                failed = e.bucket == NULL;
                if (failed) break;
            }
            uint32_t row = shoal_row_of(e.bucket, e.lane);
            uint64_t *meta = &e.bucket->meta[e.lane];
            uint32_t uses = shoal_uses_of(*meta);
            *meta = shoal_meta(row, uses + 1, b->version);
            values[turn][count] = (float *)shoal_value(t, s, row);
            slots[turn][count] = shoal_slots(t, s, row);
            gradients[turn][count] = b->gradients + (base + c->positions[j]) * t->dim;
            noise[turn][count] = hashes[j] ^ ((uint64_t)b->version << 16 | uses);
        }
        for (int64_t r = 0; r < count; r++) shoal_prefetch_run(values[turn][r], t->value_stride, 1);
        for (int64_t r = 0; r < count; r++) shoal_prefetch_run(slots[turn][r], t->slot_stride, 1);
        for (int64_t r = 0; r < count; r++) shoal_prefetch_run(gradients[turn][r], (size_t)t->dim * 4, 0);
        found[turn] = count;
        int64_t before = turn ^ 1;
        count = found[before];
        found[before] = 0;
        if (SHOAL_LIKELY(plain)) {
            apply(values[before], slots[before], gradients[before], count, t->dim, t->dim, b->step);
        } else {
            for (int64_t r = 0; r < count; r++)
                shoal_apply_row(apply, values[before][r], slots[before][r], gradients[before][r],
                                t->dim, t->format, shoal_mix64(noise[before][r] + t->noise_key),
                                b->step, c->floats);
        }
    }
    return failed ? SHOAL_NO_MEMORY : SHOAL_OK;
}

/* ---- insert and assign: not on the hot path, one id after another ---- */

static int shoal_assign_window(shoal_store *t, const shoal_batch *b, const shoal_scratch *c,
                               int64_t base, int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; j++) {
        shoal_stripe *s = &t->stripes[c->sorted[j] & (t->stripe_count - 1)];
        shoal_entry e = shoal_find(&s->index, c->sorted[j]);
        if (!e.bucket) e = shoal_insert(t, s, c->sorted[j], c->floats);
        if (!e.bucket) return SHOAL_NO_MEMORY;
        if (j + SHOAL_GROUP < end) shoal_prefetch_buckets(t, c->sorted + j + SHOAL_GROUP, 1);
        if (!b->values) continue;
        int64_t i = base + c->positions[j];
        uint32_t row = shoal_row_of(e.bucket, e.lane);
        uint64_t *meta = &e.bucket->meta[e.lane];
        shoal_encode(b->values + i * t->dim, shoal_value(t, s, row), t->dim, t->format);
        float *slots = shoal_slots(t, s, row);
        for (int k = 0; k < t->slots; k++)
            if (b->slots[k])
                memcpy(slots + k * t->slot_width, b->slots[k] + i * t->slot_width,
                       (size_t)t->slot_width * 4);
        *meta = shoal_meta(row, b->uses ? b->uses[i] : shoal_uses_of(*meta),
                           b->versions ? b->versions[i] : shoal_version_of(*meta));
    }
    return SHOAL_OK;
}

/* Runs a batch: a lookup if it has `out`, an update if it has gradients, else an
 * assignment (without values: an insertion). Returns SHOAL_OK or SHOAL_NO_MEMORY,
 * after which a part of the batch may have been done. */
static int shoal_run(shoal_store *t, const shoal_batch *b) {
    shoal_scratch scratch;
    int result = SHOAL_OK;
    if (b->n == 0) return SHOAL_OK;
    if (!shoal_scratch_init(&scratch, t, b->n)) return SHOAL_NO_MEMORY;
    for (int64_t base = 0; base < b->n && result == SHOAL_OK; base += SHOAL_BLOCK) {
        int64_t n = b->n - base < SHOAL_BLOCK ? b->n - base : SHOAL_BLOCK;
        shoal_sort(t, &scratch, b->ids + base, n);
        for (uint32_t first = 0, last; first < t->stripe_count && result == SHOAL_OK; first = last) {
            last = shoal_window_end(t, scratch.ends, first);
            int64_t begin = scratch.ends[first], end = scratch.ends[last];
            if (begin == end) continue;
            shoal_lock_window(t, scratch.ends, first, last);
            if (b->out) shoal_lookup_window(t, b, &scratch, base, begin, end);
            else if (b->gradients) result = shoal_update_window(t, b, &scratch, base, begin, end);
            else result = shoal_assign_window(t, b, &scratch, base, begin, end);
            shoal_unlock_window(t, scratch.ends, first, last);
        }
    }
    shoal_scratch_free(&scratch);
    return result;
}

#endif
