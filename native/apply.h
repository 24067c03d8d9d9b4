/* Applies an update rule to a group of rows, or to a dense block.
 *
 * Owns what comes before the rule (gradient scale, clipping, weight decay) and
 * the 16-bit row formats; the rules themselves are in steps.h, finding the rows
 * is the store's business (traffic.h).
 */
#ifndef SHOAL_APPLY_H
#define SHOAL_APPLY_H

#include "halves.h"
#include "mixing.h"
#include "steps.h"

/* How a row's values are kept: number and name. */
#define SHOAL_EACH_FORMAT(of)    \
    of(SHOAL_FLOAT32, float32)   \
    of(SHOAL_BFLOAT16, bfloat16) \
    of(SHOAL_FLOAT16, float16)

enum { SHOAL_EACH_FORMAT(SHOAL_NUMBER) SHOAL_FORMATS };
static const char *const shoal_format_names[] = {SHOAL_EACH_FORMAT(SHOAL_NAME)};

/* rows records, the values at w[r] and the slots `slots` floats behind them, each `pitch`
 * floats after the one before; gradients: [rows, dim]. */
typedef void (*shoal_apply_fn)(float *const *w, size_t slots, const float *gradients,
                               int64_t rows, int64_t dim, int64_t pitch, const shoal_step *p);

/* The same address, which the compiler no longer knows to come from another: values
 * and slots of a record do not overlap, but seeing one computed from the other it
 * assumes that they may, and does not vectorise (46 ns a row of 16 instead of 14). */
SHOAL_INLINE float *shoal_unrelated(float *address) {
    __asm__("" : "+r"(address));
    return address;
}

/* A whole group per call, so that dispatch is paid once per group, not per row. */
#define SHOAL_APPLY(name)                                                                   \
    SHOAL_CLONES static void shoal_apply_##name(                                            \
        float *const *w, size_t slots, const float *gradients, int64_t rows, int64_t dim,   \
        int64_t pitch, const shoal_step *p) {                                               \
        if (pitch == dim) {                                                                 \
            SHOAL_WITH_CONSTANT_DIM(                                                        \
                dim, for (int64_t r = 0; r < rows; r++, gradients += n)                     \
                         shoal_step_##name(w[r], shoal_unrelated(w[r] + slots), gradients, n, n, p)) \
        } else {                                                                            \
            for (int64_t r = 0; r < rows; r++, gradients += dim)                            \
                shoal_step_##name(w[r], shoal_unrelated(w[r] + slots), gradients, dim, pitch, p); \
        }                                                                                   \
    }

#define SHOAL_APPLY_RULE(number, name) SHOAL_APPLY(name)
SHOAL_EACH_RULE(SHOAL_APPLY_RULE)

static shoal_apply_fn shoal_apply_of(int rule) {
#define SHOAL_APPLY_ENTRY(number, name) [number] = shoal_apply_##name,
    static const shoal_apply_fn table[SHOAL_RULES] = {SHOAL_EACH_RULE(SHOAL_APPLY_ENTRY)};
#undef SHOAL_APPLY_ENTRY
    return table[rule];
}

SHOAL_INLINE int shoal_is_plain(const shoal_step *p) {
    return p->scale == 1.0f && p->clip_value == 0.0f && p->clip_norm == 0.0f && p->decay == 0.0f;
}

/* out = the gradient the rule sees: scaled, then clipped by value or by its norm
 * (g * c / max(norm, c), as Keras). out: OUT, n floats; g: IN. */
SHOAL_CLONES static void shoal_prepare_gradient(const float *restrict g, float *restrict out,
                                                int64_t n, const shoal_step *p) {
    const float scale = p->scale, limit = p->clip_value, norm = p->clip_norm;
    for (int64_t i = 0; i < n; i++) out[i] = g[i] * scale;
    if (norm > 0.0f) {
        float length = __builtin_sqrtf(shoal_sum_squares(out, n));
        float divisor = length > norm ? length : norm;
        for (int64_t i = 0; i < n; i++) out[i] = out[i] * norm / divisor;
    } else if (limit > 0.0f) {
        for (int64_t i = 0; i < n; i++)
            out[i] = out[i] < -limit ? -limit : (out[i] > limit ? limit : out[i]);
    }
}

/* Before the rule. Keras: variable - variable * weight_decay * learning_rate; PyTorch: one factor. */
SHOAL_CLONES static void shoal_decay_weights(float *w, int64_t n, const shoal_step *p) {
    const float decay = p->decay, rate = p->rate;
    if (p->torch) {
        for (int64_t i = 0; i < n; i++) w[i] *= p->kept;
    } else {
        for (int64_t i = 0; i < n; i++) w[i] = w[i] - w[i] * decay * rate;
    }
}

/* Copies a part of a row. Readers take no lock: an update may be changing the row, and
 * shoal_unchanged (store.h) then has them read it again. */
#ifdef __SANITIZE_THREAD__
static SHOAL_RACY void shoal_read(void *out, const void *row, size_t bytes) {
    const volatile char *from = (const volatile char *)row; /* memcpy would be looked into */
    for (size_t i = 0; i < bytes; i++) ((char *)out)[i] = from[i];
}
#else
SHOAL_INLINE void shoal_read(void *out, const void *row, size_t bytes) { memcpy(out, row, bytes); }
#endif

SHOAL_INLINE void shoal_decode(const void *row, float *out, int64_t dim, int format) {
    if (format == SHOAL_BFLOAT16) shoal_decode_bfloat16((const uint16_t *)row, out, dim);
    else if (format == SHOAL_FLOAT16) shoal_decode_float16((const uint16_t *)row, out, dim);
    else shoal_read(out, row, (size_t)dim * 4);
}

/* Halves that rounding carried to infinity become the largest finite number, as updates have
 * it: an infinity would ruin the row for good. x: as it was before; infinity: of the format. */
SHOAL_CLONES static void shoal_saturate(const float *x, uint16_t *row, int64_t dim,
                                        uint16_t infinity) {
    for (int64_t c = 0; c < dim; c++) {
        const int carried = (row[c] & 0x7FFFu) == infinity && (shoal_bits(x[c]) & 0x7FFFFFFFu) < 0x7F800000u;
        row[c] = (uint16_t)(row[c] - (carried ? 1 : 0));
    }
}

SHOAL_INLINE void shoal_encode(const float *x, void *row, int64_t dim, int format) {
    uint16_t *halves = (uint16_t *)row;
    if (format == SHOAL_BFLOAT16) {
        shoal_encode_bfloat16(x, halves, dim);
        shoal_saturate(x, halves, dim, 0x7F80u);
    } else if (format == SHOAL_FLOAT16) {
        shoal_encode_float16(x, halves, dim);
        shoal_saturate(x, halves, dim, 0x7C00u);
    } else {
        memcpy(row, x, (size_t)dim * 4);
    }
}

/* Two columns share one 64-bit draw: bfloat16 needs 16 bits, float16 24. */
SHOAL_CLONES static void shoal_encode_stochastic(const float *x, uint16_t *row, int64_t dim,
                                                 int format, uint64_t key) {
    for (int64_t c = 0; c < dim; c++) {
        uint64_t draw = shoal_mix64(key + (uint64_t)(c >> 1) * SHOAL_GOLDEN);
        uint32_t noise = (uint32_t)(draw >> ((c & 1) ? 32 : 0));
        row[c] = format == SHOAL_BFLOAT16 ? shoal_to_bfloat16_stochastic(x[c], noise)
                                          : shoal_to_float16_stochastic(x[c], noise);
    }
}

/* One row that needs more than the plain path: scratch holds 2 * dim floats. */
static void shoal_apply_row(shoal_apply_fn apply, void *record, size_t slot_offset,
                            const float *g, int64_t dim, int format, uint64_t noise_key,
                            const shoal_step *p, float *scratch) {
    float *w = format == SHOAL_FLOAT32 ? (float *)record : scratch;
    if (format != SHOAL_FLOAT32) shoal_decode(record, w, dim, format);
    if (!shoal_is_plain(p)) {
        shoal_prepare_gradient(g, scratch + dim, dim, p);
        g = scratch + dim;
        if (p->decay != 0.0f) shoal_decay_weights(w, dim, p);
    }
    float *slots = (float *)((char *)record + slot_offset);
    apply(&w, (size_t)(slots - w), g, 1, dim, dim, p);
    if (format != SHOAL_FLOAT32)
        shoal_encode_stochastic(w, (uint16_t *)record, dim, format, noise_key);
}

#endif
