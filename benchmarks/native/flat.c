/* The machine's limit: the row traffic of a batch on flat arrays, with no hash.
 *
 * Row i of a table of `dim` floats is record i of an array in huge pages; the ids are
 * the row numbers. One prefetch some rows ahead hides the latency as well as this
 * machine can. Built with -O3 -march=native; the kernels are those of native/steps.h, but for
 * Adagrad, where this loop was the faster one at dim 16. Distances and loops are the fastest
 * that were found: a limit that could be beaten is none.
 *
 * With an index (lines of 64 bytes, else NULL) it also goes to one random line of it a row,
 * where a hash table keeps its entry, and marks that before and after an update: what is
 * left then between this and the row store is computing, not memory.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "../../native/apply.h"

enum { AHEAD = 32, ADAGRAD_AHEAD = 48 }; /* rows */
#define INLINE static inline __attribute__((always_inline))

float *flat_alloc(size_t floats) {
    size_t bytes = (floats * 4 + (4u << 20) - 1) & ~((size_t)(2u << 20) - 1);
    char *p = mmap(NULL, bytes + (2u << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    p = (char *)(((uintptr_t)p + (2u << 20) - 1) & ~((uintptr_t)(2u << 20) - 1));
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return (float *)p;
}

INLINE void ahead(const float *p, int floats) {
    for (int k = 0; k < floats; k += 16) {
        __builtin_prefetch(p + k, 0, 2);
    }
}

/* The index line of a row, anywhere among them. */
INLINE uint64_t *entry(uint64_t *index, uint64_t lines, int64_t id) {
    return index + ((((uint64_t)id * 0x9E3779B97F4A7C15u) >> 32) * lines >> 32) * 8;
}
INLINE void entry_ahead(uint64_t *index, uint64_t lines, int64_t id) {
    if (index) __builtin_prefetch(entry(index, lines, id), 0, 2);
}
INLINE void mark(uint64_t *index, uint64_t lines, int64_t id, uint64_t add) {
    if (index) *(volatile uint64_t *)entry(index, lines, id) += add;
}

/* Slots are in the row's record, after its values: the faster of the two layouts. stride: floats
 * from a record to the next. */
INLINE void lookup(const float *w, size_t stride, const int64_t *ids, int64_t n, const int64_t dim, uint64_t *index, uint64_t lines, float *out) {
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) { entry_ahead(index, lines, ids[i + AHEAD]); ahead(w + ids[i + AHEAD] * stride, dim); }
        if (index) (void)*(volatile uint64_t *)entry(index, lines, ids[i]);
        memcpy(out + i * dim, w + ids[i] * stride, (size_t)dim * 4);
    }
}
INLINE void sgd(float *w, size_t stride, const int64_t *ids, int64_t n, const int64_t dim, uint64_t *index, uint64_t lines, const float *g, float rate) {
    const shoal_step step = {.rate = rate};
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) { entry_ahead(index, lines, ids[i + AHEAD]); ahead(w + ids[i + AHEAD] * stride, dim); }
        mark(index, lines, ids[i], 1ull << 32);
        float *r = shoal_unrelated(w + ids[i] * stride);
        shoal_step_sgd(r, shoal_unrelated(r + dim), g + i * dim, dim, dim, &step);
        mark(index, lines, ids[i], 1);
    }
}
INLINE void adagrad(float *w, size_t stride, const int64_t *ids, int64_t n, const int64_t dim, uint64_t *index, uint64_t lines, const float *g, float rate) {
    for (int64_t i = 0; i < n; i++) {
        if (i + ADAGRAD_AHEAD < n) { entry_ahead(index, lines, ids[i + ADAGRAD_AHEAD]); ahead(w + ids[i + ADAGRAD_AHEAD] * stride, 2 * dim); }
        mark(index, lines, ids[i], 1ull << 32);
        float *restrict r = w + ids[i] * stride, *restrict s = shoal_unrelated(r + dim);
        for (int c = 0; c < dim; c++) {
            float x = g[i * dim + c], v = s[c] + x * x;
            s[c] = v;
            r[c] -= rate * x / __builtin_sqrtf(v + 1e-7f);
        }
        mark(index, lines, ids[i], 1);
    }
}
INLINE void adam(float *w, size_t stride, const int64_t *ids, int64_t n, const int64_t dim, uint64_t *index, uint64_t lines, const float *g, float alpha) {
    const shoal_step step = {.alpha = alpha, .keep_first = 0.1f, .keep_second = 0.001f, .epsilon = 1e-7f};
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) { entry_ahead(index, lines, ids[i + AHEAD]); ahead(w + ids[i + AHEAD] * stride, 3 * dim); }
        mark(index, lines, ids[i], 1ull << 32);
        float *r = w + ids[i] * stride;
        shoal_step_adam(r, shoal_unrelated(r + dim), g + i * dim, dim, dim, &step);
        mark(index, lines, ids[i], 1);
    }
}
#define BY_DIM(call) switch (dim) { case 16: { enum { D = 16 }; call; } break; case 64: { enum { D = 64 }; call; } break; default: { int D = dim; call; } }
/* Without an index as a constant, so that nothing of it is left. */
#define BY_KIND(call) if (index) { BY_DIM(call) } else { uint64_t *const index = NULL; BY_DIM(call) }
#define COMMON size_t stride, const int64_t *ids, int64_t n, const int64_t dim, uint64_t *index, uint64_t lines
void flat_lookup(const float *w, COMMON, float *out) { BY_KIND(lookup(w, stride, ids, n, D, index, lines, out)) }
void flat_sgd(float *w, COMMON, const float *g, float rate) { BY_KIND(sgd(w, stride, ids, n, D, index, lines, g, rate)) }
void flat_adagrad(float *w, COMMON, const float *g, float rate) { BY_KIND(adagrad(w, stride, ids, n, D, index, lines, g, rate)) }
void flat_adam(float *w, COMMON, const float *g, float alpha) { BY_KIND(adam(w, stride, ids, n, D, index, lines, g, alpha)) }
