/* Worker-side kernels over one batch: unique ids, partition, sums, row moves.
 *
 * Stateless: every function reads its arguments and writes its outputs. The hash
 * of unique() lives for one call only, in memory the caller gives.
 */
#ifndef SHOAL_BATCH_H
#define SHOAL_BATCH_H

#include "mixing.h"

enum { SHOAL_AHEAD = 16 }; /* how many elements ahead a random access is prefetched */

SHOAL_CLONES static void shoal_mix_all(const int64_t *ids, uint64_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = shoal_mix64((uint64_t)ids[i]);
}

SHOAL_CLONES static void shoal_slot_all(const int64_t *ids, uint16_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = (uint16_t)shoal_slot(shoal_mix64((uint64_t)ids[i]));
}

/* Where unique() looks for an id first. key: nobody knows it who could choose the ids, which
 * would all be given one place otherwise. */
SHOAL_INLINE uint64_t shoal_unique_place(int64_t id, uint64_t key, uint64_t mask) {
    return shoal_mix64((uint64_t)id ^ key) & mask;
}

SHOAL_CLONES static void shoal_unique_places(const int64_t *ids, uint64_t *out, int64_t n, uint64_t key,
                                         uint64_t mask) {
    for (int64_t i = 0; i < n; i++) out[i] = shoal_unique_place(ids[i], key, mask);
}

/* Unique ids in order of first appearance. table: zeroed, `mask + 1` >= 2 n words;
 * a word is a unique id's index + 1. key: as shoal_unique_place. unique, counts: room for n. Returns how
 * many.
 *
 * Whether an id was seen before is a toss-up in skewed ids, so nothing branches on it: each
 * id is written as if it were new, and a word that is 0 then leads to it. Counting is a pass
 * of its own. Both together are twice as fast on power-law ids, and as fast on distinct ones. */
static int64_t shoal_unique(const int64_t *ids, int64_t n, uint32_t *table, uint64_t mask,
                            uint64_t key, int64_t *unique, int32_t *inverse, int32_t *counts) {
    uint64_t places[SHOAL_AHEAD];
    int64_t found = 0;
    for (int64_t i = 0; i < SHOAL_AHEAD && i < n; i++) {
        places[i] = shoal_unique_place(ids[i], key, mask);
        __builtin_prefetch(&table[places[i]]);
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = places[i % SHOAL_AHEAD];
        if (i + SHOAL_AHEAD < n) {
            places[i % SHOAL_AHEAD] = shoal_unique_place(ids[i + SHOAL_AHEAD], key, mask);
            __builtin_prefetch(&table[places[i % SHOAL_AHEAD]]); /* small: the first-level cache */
        }
        uint32_t word, index;
        for (unique[found] = ids[i];; at = (at + 1) & mask) {
            word = table[at];
            index = word ? word - 1 : (uint32_t)found;
            if (SHOAL_LIKELY(unique[index] == ids[i])) break;
        }
        table[at] = index + 1;
        inverse[i] = (int32_t)index;
        found += word == 0;
    }
    memset(counts, 0, (size_t)found * sizeof *counts);
    for (int64_t i = 0; i < n; i++) counts[inverse[i]]++;
    return found;
}

/* Stable order of ids by owner. offsets: OUT [servers + 1]; order: OUT [n];
 * owner_of: scratch [n]. Returns 0 if an owner is not below servers. */
static int shoal_partition(const int64_t *ids, int64_t n, const uint16_t *owners, int64_t servers,
                           uint16_t *owner_of, int64_t *order, int64_t *offsets) {
    memset(offsets, 0, (size_t)(servers + 1) * sizeof *offsets);
    for (int64_t i = 0; i < n; i++) {
        uint16_t owner = owners[shoal_slot(shoal_mix64((uint64_t)ids[i]))];
        if (owner >= servers) return 0;
        owner_of[i] = owner;
        offsets[owner + 1]++;
    }
    for (int64_t k = 0; k < servers; k++) offsets[k + 1] += offsets[k];
    for (int64_t i = 0; i < n; i++) order[offsets[owner_of[i]]++] = i;
    for (int64_t k = servers; k > 0; k--) offsets[k] = offsets[k - 1];
    offsets[0] = 0;
    return 1;
}

/* out[inverse[i]] += gradients[i], in order of i. out: zeroed. */
SHOAL_CLONES static void shoal_sum_rows(const float *restrict gradients, const int32_t *inverse,
                                        int64_t count, int64_t dim, float *restrict out) {
    SHOAL_WITH_CONSTANT_DIM(dim, for (int64_t i = 0; i < count; i++) {
        if (i + SHOAL_AHEAD < count)
            shoal_prefetch(out + (int64_t)inverse[i + SHOAL_AHEAD] * n);
        float *restrict row = out + (int64_t)inverse[i] * n;
        const float *restrict g = gradients + i * n;
        for (int64_t c = 0; c < n; c++) row[c] += g[c];
    })
}

/* out[i] = rows[index[i]] */
SHOAL_CLONES static void shoal_gather(const float *restrict rows, const int32_t *index,
                                      int64_t count, int64_t dim, float *restrict out) {
    SHOAL_WITH_CONSTANT_DIM(dim, for (int64_t i = 0; i < count; i++) {
        if (i + SHOAL_AHEAD < count)
            shoal_prefetch(rows + (int64_t)index[i + SHOAL_AHEAD] * n);
        memcpy(out + i * n, rows + (int64_t)index[i] * n, (size_t)n * sizeof(float));
    })
}

/* out[index[i]] = rows[i] */
SHOAL_CLONES static void shoal_scatter(const float *restrict rows, const int32_t *index,
                                       int64_t count, int64_t dim, float *restrict out) {
    SHOAL_WITH_CONSTANT_DIM(dim, for (int64_t i = 0; i < count; i++) {
        if (i + SHOAL_AHEAD < count)
            shoal_prefetch(out + (int64_t)index[i + SHOAL_AHEAD] * n);
        memcpy(out + (int64_t)index[i] * n, rows + i * n, (size_t)n * sizeof(float));
    })
}

static int shoal_all_below(const int32_t *index, int64_t n, int64_t limit) {
    int32_t low = 0, high = -1;
    for (int64_t i = 0; i < n; i++) {
        low = index[i] < low ? index[i] : low;
        high = index[i] > high ? index[i] : high;
    }
    return low >= 0 && high < limit;
}

/* Squares in double, 16 partial sums: a global norm may cover 1e9 elements. */
SHOAL_CLONES static double shoal_square_sum(const float *x, int64_t n) {
    double part[16] = {0}, total = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) part[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i + j < n; j++) part[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; j < 16; j++) total += part[j];
    return total;
}

#endif
