/* The pipeline of one instruction set: lookup and update of a block of ids.
 *
 * Included by traffic.h once per instruction set, with SHOAL_VARIANT(name) naming the
 * functions and SHOAL_MATCH finding a hash in a bucket. This is written out because
 * target_clones cannot use an instruction set's own comparison into a mask, which
 * is a quarter of the instructions that a row takes. That matters although the work is
 * bound by memory: the fewer instructions a row takes, the more rows the processor has
 * under way at once.
 */

SHOAL_INLINE void SHOAL_VARIANT(probe)(const shoal_view *v, shoal_ring *ring, uint64_t hash,
                                       uint64_t j, const int late) {
    shoal_bucket *home = ring->homes[j % SHOAL_RING];
    unsigned match = SHOAL_MATCH(home, hash);
    if (SHOAL_LIKELY(match)) {
        shoal_settle(v, ring, home, __builtin_ctz(match), j, late);
        return;
    }
    ring->metas[j % SHOAL_RING] = NULL; /* and something that may be prefetched: */
    ring->records[j % SHOAL_RING] = home->tag[SHOAL_LANES - 1] ? SHOAL_PENDING : (char *)home;
    shoal_prefetch(home + 1);
}

/* Fills the pipeline. hashes: the block's, and SHOAL_FARTHEST more of any value. */
SHOAL_INLINE void SHOAL_VARIANT(fill)(const shoal_view *v, shoal_ring *ring,
                                      const uint64_t *hashes, const int late) {
    for (uint64_t j = 0; j < SHOAL_APPROACH(late); j++) shoal_approach(v, ring, hashes[j], j);
    for (uint64_t j = 0; j < SHOAL_PROBE(late); j++)
        SHOAL_VARIANT(probe)(v, ring, hashes[j], j, late);
    for (uint64_t j = 0; j < SHOAL_RESOLVE(late); j++) shoal_resolve(v, ring, hashes[j], j, late);
}

SHOAL_INLINE void SHOAL_VARIANT(advance)(const shoal_view *v, shoal_ring *ring,
                                         const uint64_t *hashes, uint64_t i, const int late) {
    const uint64_t approach = i + SHOAL_APPROACH(late);
    const uint64_t probe = i + SHOAL_PROBE(late), resolve = i + SHOAL_RESOLVE(late);
    shoal_approach(v, ring, hashes[approach], approach);
    SHOAL_VARIANT(probe)(v, ring, hashes[probe], probe, late);
    shoal_resolve(v, ring, hashes[resolve], resolve, late);
}

/* dim: columns, or 0 for 16-bit rows, which are decoded. out: the block's, [count, dim]. */
SHOAL_INLINE void SHOAL_VARIANT(lookup_rows)(const shoal_store *t, const shoal_batch *b,
                                             const uint64_t *hashes, float *out, uint64_t count,
                                             const int64_t dim, float *scratch) {
    shoal_ring ring;
    const size_t bytes = dim ? (size_t)dim * sizeof(float) : t->value_bytes;
    const shoal_view view = shoal_view_of(t, t->stride, bytes);
    const int64_t step = dim ? dim : t->dim;
    SHOAL_VARIANT(fill)(&view, &ring, hashes, 0);
    for (uint64_t i = 0; i < count; i++, out += step) {
        SHOAL_VARIANT(advance)(&view, &ring, hashes, i, 0);
        const uint64_t *meta = ring.metas[i % SHOAL_RING];
        const char *record = ring.records[i % SHOAL_RING];
        if (SHOAL_UNLIKELY(!meta)) {
            shoal_read_missing(t, b, hashes[i], out, scratch);
            continue;
        }
        uint64_t seen;
        do {
            seen = shoal_stable_meta(meta);
            if (dim) shoal_read(out, record, bytes);
            else shoal_decode(record, out, t->dim, t->format);
        } while (!shoal_unchanged(meta, seen));
    }
}

static void SHOAL_VARIANT(lookup_block)(const shoal_store *t, const shoal_batch *b,
                                        const uint64_t *hashes, float *out, uint64_t count,
                                        float *scratch) {
    if (t->format == SHOAL_FLOAT32)
        SHOAL_WITH_CONSTANT_DIM(
            t->dim, SHOAL_VARIANT(lookup_rows)(t, b, hashes, out, count, n, scratch))
    else SHOAL_VARIANT(lookup_rows)(t, b, hashes, out, count, 0, scratch);
}

SHOAL_INLINE void SHOAL_VARIANT(update_row)(uint64_t *meta, float *values, const float *gradients,
                                            const int rule, const int64_t dim,
                                            const shoal_step *step, uint32_t version) {
    const uint64_t held = shoal_mark_row(meta);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* the mark is seen before what follows */
    float *slots = shoal_unrelated(values + dim);
    if (rule == SHOAL_SGD) shoal_step_sgd(values, slots, gradients, dim, dim, step);
    else if (rule == SHOAL_ADAGRAD) shoal_step_adagrad(values, slots, gradients, dim, dim, step);
    else if (rule == SHOAL_ROWWISE_ADAGRAD)
        shoal_step_rowwise_adagrad(values, slots, gradients, dim, dim, step);
    else shoal_step_adam(values, slots, gradients, dim, dim, step);
    __atomic_store_n(meta, shoal_meta_used(held, version), __ATOMIC_RELEASE);
}

/* Wide rows of a large table (traffic.h), one thread; otherwise as update_alone. */
SHOAL_INLINE uint64_t SHOAL_VARIANT(update_large)(const shoal_store *t, const shoal_batch *b,
                                                  const uint64_t *hashes, const float *gradients,
                                                  uint64_t count, const int rule,
                                                  const int64_t dim, const size_t bytes) {
    const shoal_view view = shoal_view_of(t, bytes, bytes);
    const shoal_step step = *b->step;
    const uint32_t version = b->version;
    shoal_ring ring;
    SHOAL_VARIANT(fill)(&view, &ring, hashes, 1);
    for (uint64_t first = 0; first < count; first += SHOAL_TOGETHER) {
        const uint64_t left = count - first;
        const uint64_t end = first + (left < SHOAL_TOGETHER ? left : SHOAL_TOGETHER);
        for (uint64_t i = first; i < end; i++) SHOAL_VARIANT(advance)(&view, &ring, hashes, i, 1);
        for (uint64_t i = first; i < end; i++, gradients += dim) {
            uint64_t *meta = ring.metas[i % SHOAL_RING];
            if (SHOAL_UNLIKELY(!meta)) {
                if (!b->missed) return i;
                shoal_miss(b->missed, i);
                continue;
            }
            SHOAL_VARIANT(update_row)(meta, (float *)ring.records[i % SHOAL_RING], gradients, rule,
                                      dim, &step, version);
        }
    }
    return count;
}

/* A function each: in one with all the others the compiler runs out of registers. */
#define SHOAL_LARGE_UPDATE(name, rule, dim, slots)                                             \
    static __attribute__((noinline)) uint64_t SHOAL_VARIANT(name)(                             \
        const shoal_store *t, const shoal_batch *b, const uint64_t *hashes,                    \
        const float *gradients, uint64_t count) {                                              \
        return SHOAL_VARIANT(update_large)(t, b, hashes, gradients, count, rule, dim,          \
                                           (1 + (slots)) * (dim) * sizeof(float));             \
    }
SHOAL_LARGE_UPDATE(adagrad_64_large, SHOAL_ADAGRAD, 64, 1)
SHOAL_LARGE_UPDATE(adam_32_large, SHOAL_ADAM, 32, 2)
SHOAL_LARGE_UPDATE(adam_64_large, SHOAL_ADAM, 64, 2)
#undef SHOAL_LARGE_UPDATE

/* The usual case, with rule and dim constants: one thread updates, float32, gradients as
 * they are. Row by row, the rule inlined: a fifth less time than groups for rows that
 * are in the caches. */
SHOAL_INLINE uint64_t SHOAL_VARIANT(update_alone)(const shoal_store *t, const shoal_batch *b,
                                                  const uint64_t *hashes, const float *gradients,
                                                  uint64_t count, const int rule,
                                                  const int64_t dim) {
    /* A record's size as a constant: no multiplication, no loop around the prefetches. */
    const int64_t slots = rule == SHOAL_ADAM ? 2 * dim
                          : rule == SHOAL_ADAGRAD ? dim : rule == SHOAL_ROWWISE_ADAGRAD;
    const size_t bytes = (size_t)(dim + slots) * sizeof(float);
    const shoal_view view = shoal_view_of(t, bytes, bytes);
    const shoal_step step = *b->step; /* locals: the rows written could alias them */
    const uint32_t version = b->version;
    shoal_ring ring;
    SHOAL_VARIANT(fill)(&view, &ring, hashes, 0);
    for (uint64_t i = 0; i < count; i++, gradients += dim) {
        SHOAL_VARIANT(advance)(&view, &ring, hashes, i, 0);
        uint64_t *meta = ring.metas[i % SHOAL_RING];
        if (SHOAL_UNLIKELY(!meta)) {
            if (!b->missed) return i;
            shoal_miss(b->missed, i);
            continue;
        }
        SHOAL_VARIANT(update_row)(meta, (float *)ring.records[i % SHOAL_RING], gradients, rule, dim,
                                  &step, version);
    }
    return count;
}

#define SHOAL_ALONE(rule)                                                                     \
    case rule:                                                                                \
        switch (t->dim) {                                                                     \
            case 8: return SHOAL_VARIANT(update_alone)(t, b, hashes, gradients, count, rule, 8);   \
            case 16: return SHOAL_VARIANT(update_alone)(t, b, hashes, gradients, count, rule, 16); \
            case 32: return SHOAL_VARIANT(update_alone)(t, b, hashes, gradients, count, rule, 32); \
            case 64: return SHOAL_VARIANT(update_alone)(t, b, hashes, gradients, count, rule, 64); \
        }                                                                                     \
        break;

/* Updates ids in order, up to the first missing one unless the batch notes those; returns how
 * many were done.
 * gradients: the block's, [count, dim]; alone: no other thread updates meanwhile. */
static uint64_t SHOAL_VARIANT(update_block)(shoal_store *t, const shoal_batch *b,
                                            const uint64_t *hashes, const float *gradients,
                                            uint64_t count, int alone, float *scratch) {
    const shoal_apply_fn apply = shoal_apply_of(b->step->rule);
    const int plain = t->format == SHOAL_FLOAT32 && shoal_is_plain(b->step);
    const shoal_view view = shoal_view_of(t, t->stride, t->stride);
    const uint64_t dim = (uint64_t)t->dim;
    shoal_ring ring;
    if (alone && plain && shoal_is_large(t)) {
        if (b->step->rule == SHOAL_ADAGRAD && dim == 64)
            return SHOAL_VARIANT(adagrad_64_large)(t, b, hashes, gradients, count);
        if (b->step->rule == SHOAL_ADAM && dim == 32)
            return SHOAL_VARIANT(adam_32_large)(t, b, hashes, gradients, count);
        if (b->step->rule == SHOAL_ADAM && dim == 64)
            return SHOAL_VARIANT(adam_64_large)(t, b, hashes, gradients, count);
    }
    if (alone && plain)
        switch (b->step->rule) {
            SHOAL_ALONE(SHOAL_SGD)
            SHOAL_ALONE(SHOAL_ADAGRAD)
            SHOAL_ALONE(SHOAL_ROWWISE_ADAGRAD)
            SHOAL_ALONE(SHOAL_ADAM)
        }
    SHOAL_VARIANT(fill)(&view, &ring, hashes, 0);
    for (uint64_t i = 0; i < count; i += SHOAL_GROUP) {
        uint64_t here = count - i < SHOAL_GROUP ? count - i : SHOAL_GROUP, present = 0;
        uint64_t *const *metas = ring.metas + i % SHOAL_RING;
        for (uint64_t k = 0; k < here; k++) {
            SHOAL_VARIANT(advance)(&view, &ring, hashes, i + k, 0);
            present += metas[k] != NULL;
        }
        if (SHOAL_UNLIKELY(present < here)) {
            if (b->missed) {
                shoal_update_present(t, b, apply, plain, metas, ring.records + i % SHOAL_RING,
                                     hashes + i, gradients + i * dim, here, i, scratch);
                continue;
            }
            for (here = 0; metas[here]; here++) {}
        }
        shoal_update_group(t, b, apply, plain, metas, ring.records + i % SHOAL_RING, hashes + i,
                           gradients + i * dim, here, scratch);
        if (SHOAL_UNLIKELY(present < SHOAL_GROUP && i + here < count)) return i + here;
    }
    return count;
}
#undef SHOAL_ALONE
