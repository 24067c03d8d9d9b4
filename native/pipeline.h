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
                                       uint64_t j) {
    shoal_bucket *home = ring->homes[j % SHOAL_RING];
    unsigned match = SHOAL_MATCH(home, hash);
    if (SHOAL_LIKELY(match)) {
        shoal_settle(v, ring, home, __builtin_ctz(match), j);
        return;
    }
    ring->metas[j % SHOAL_RING] = NULL;
    ring->records[j % SHOAL_RING] = home->tag[SHOAL_LANES - 1] ? SHOAL_PENDING : NULL;
    shoal_prefetch(home + 1);
}

/* Fills the pipeline. hashes: the block's, and SHOAL_APPROACH more of any value. */
SHOAL_INLINE void SHOAL_VARIANT(fill)(const shoal_view *v, shoal_ring *ring,
                                      const uint64_t *hashes) {
    for (uint64_t j = 0; j < SHOAL_APPROACH; j++) shoal_approach(v, ring, hashes[j], j);
    for (uint64_t j = 0; j < SHOAL_PROBE; j++) SHOAL_VARIANT(probe)(v, ring, hashes[j], j);
    for (uint64_t j = 0; j < SHOAL_RESOLVE; j++) shoal_resolve(v, ring, hashes[j], j);
}

SHOAL_INLINE void SHOAL_VARIANT(advance)(const shoal_view *v, shoal_ring *ring,
                                         const uint64_t *hashes, uint64_t i) {
    shoal_approach(v, ring, hashes[i + SHOAL_APPROACH], i + SHOAL_APPROACH);
    SHOAL_VARIANT(probe)(v, ring, hashes[i + SHOAL_PROBE], i + SHOAL_PROBE);
    shoal_resolve(v, ring, hashes[i + SHOAL_RESOLVE], i + SHOAL_RESOLVE);
}

/* dim: columns, or 0 for 16-bit rows, which are decoded. out: the block's, [count, dim]. */
SHOAL_INLINE void SHOAL_VARIANT(lookup_rows)(const shoal_store *t, const shoal_batch *b,
                                             const uint64_t *hashes, float *out, uint64_t count,
                                             const int64_t dim, float *scratch) {
    shoal_ring ring;
    const size_t bytes = dim ? (size_t)dim * sizeof(float) : t->value_bytes;
    const shoal_view view = shoal_view_of(t, t->stride, bytes);
    const int64_t step = dim ? dim : t->dim;
    SHOAL_VARIANT(fill)(&view, &ring, hashes);
    for (uint64_t i = 0; i < count; i++, out += step) {
        SHOAL_VARIANT(advance)(&view, &ring, hashes, i);
        const uint64_t *meta = ring.metas[i % SHOAL_RING];
        const char *record = ring.records[i % SHOAL_RING];
        if (SHOAL_UNLIKELY(!meta)) {
            shoal_read_missing(t, b, hashes[i], out, scratch);
            continue;
        }
        uint64_t seen;
        do {
            seen = shoal_stable_meta(meta);
            if (dim) memcpy(out, record, bytes);
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
    SHOAL_VARIANT(fill)(&view, &ring, hashes);
    for (uint64_t i = 0; i < count; i++, gradients += dim) {
        SHOAL_VARIANT(advance)(&view, &ring, hashes, i);
        uint64_t *meta = ring.metas[i % SHOAL_RING];
        if (SHOAL_UNLIKELY(!meta)) return i;
        const uint64_t held = shoal_mark_row(meta);
        __atomic_thread_fence(__ATOMIC_RELEASE); /* the mark is seen before what follows */
        float *values = (float *)ring.records[i % SHOAL_RING];
        float *slots = shoal_unrelated(values + dim);
        if (rule == SHOAL_SGD) shoal_step_sgd(values, slots, gradients, dim, dim, &step);
        else if (rule == SHOAL_ADAGRAD) shoal_step_adagrad(values, slots, gradients, dim, dim, &step);
        else if (rule == SHOAL_ROWWISE_ADAGRAD)
            shoal_step_rowwise_adagrad(values, slots, gradients, dim, dim, &step);
        else shoal_step_adam(values, slots, gradients, dim, dim, &step);
        __atomic_store_n(meta, shoal_meta_used(held, version), __ATOMIC_RELEASE);
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

/* Updates ids in order up to the first missing one; returns how many were done.
 * gradients: the block's, [count, dim]; alone: no other thread updates meanwhile. */
static uint64_t SHOAL_VARIANT(update_block)(shoal_store *t, const shoal_batch *b,
                                            const uint64_t *hashes, const float *gradients,
                                            uint64_t count, int alone, float *scratch) {
    const shoal_apply_fn apply = shoal_apply_of(b->step->rule);
    const int plain = t->format == SHOAL_FLOAT32 && shoal_is_plain(b->step);
    const shoal_view view = shoal_view_of(t, t->stride, t->stride);
    const uint64_t dim = (uint64_t)t->dim;
    shoal_ring ring;
    if (alone && plain)
        switch (b->step->rule) {
            SHOAL_ALONE(SHOAL_SGD)
            SHOAL_ALONE(SHOAL_ADAGRAD)
            SHOAL_ALONE(SHOAL_ROWWISE_ADAGRAD)
            SHOAL_ALONE(SHOAL_ADAM)
        }
    SHOAL_VARIANT(fill)(&view, &ring, hashes);
    for (uint64_t i = 0; i < count; i += SHOAL_GROUP) {
        uint64_t here = count - i < SHOAL_GROUP ? count - i : SHOAL_GROUP, present = 0;
        uint64_t *const *metas = ring.metas + i % SHOAL_RING;
        for (uint64_t k = 0; k < here; k++) {
            SHOAL_VARIANT(advance)(&view, &ring, hashes, i + k);
            present += metas[k] != NULL;
        }
        if (SHOAL_UNLIKELY(present < here))
            for (here = 0; metas[here]; here++) {}
        shoal_update_group(t, b, apply, plain, metas, ring.records + i % SHOAL_RING, hashes + i,
                           gradients + i * dim, here, scratch);
        if (SHOAL_UNLIKELY(present < SHOAL_GROUP && i + here < count)) return i + here;
    }
    return count;
}
#undef SHOAL_ALONE
