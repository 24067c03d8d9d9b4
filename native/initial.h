/* Initial row values: a pure function of (seed, id, column).
 *
 * Counter-based, so a row's value does not depend on arrival order, the
 * number of servers or restarts. Normals come from the inverse distribution function,
 * one uniform number per column, with a logarithm of our own: only exactly
 * rounded IEEE operations are used, so every machine computes the same bits.
 */
#ifndef SHOAL_INITIAL_H
#define SHOAL_INITIAL_H

#include "halves.h"
#include "mixing.h"

/* Every way to draw values: number, and name in initializers.py. */
#define SHOAL_EACH_KIND(of)        \
    of(SHOAL_CONSTANT, constant)   \
    of(SHOAL_UNIFORM, uniform)     \
    of(SHOAL_NORMAL, normal)       \
    of(SHOAL_TRUNCATED_NORMAL, truncated_normal)

enum { SHOAL_EACH_KIND(SHOAL_NUMBER) SHOAL_KINDS };
static const char *const shoal_kind_names[] = {SHOAL_EACH_KIND(SHOAL_NAME)};

typedef struct {
    int kind;
    float a;      /* constant; lower bound; mean */
    float b;      /* upper bound; standard deviation */
    uint64_t key; /* mix64(seed) */
} shoal_initial;

enum { SHOAL_INITIAL_BLOCK = 16 };

/* Natural logarithm of x in (0, 1], about 1e-7 absolute: x = m * 2^e with m in
 * [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)). */
SHOAL_INLINE float shoal_ln(float x) {
    uint32_t u = shoal_bits(x) - 0x3F3504F3u; /* bits of sqrt(1/2) */
    int32_t e = (int32_t)u >> 23;
    float m = shoal_float((u & 0x007FFFFFu) + 0x3F3504F3u);
    float s = (m - 1.0f) / (m + 1.0f), t = s * s;
    float series = 2.0f * s * (1.0f + t * (0.33333333f + t * (0.2f + t * (0.14285715f + t * 0.11111111f))));
    return series + (float)e * 0.69314718f;
}

/* Standard normal quantile of (k + 1/2) / 2^32: M. J. Wichura, "Algorithm AS 241",
 * Applied Statistics 37 (1988), PPND7, about one part in 1e7. `tail` is
 * min(p, 1 - p), taken from the integer so that it keeps its precision. */
SHOAL_INLINE float shoal_quantile(float q, float tail) {
    float r = 0.180625f - q * q;
    float middle = q *
        (((59.10937472f * r + 159.2911320f) * r + 50.43427194f) * r + 3.3871327179f) /
        (((67.18756361f * r + 78.75775766f) * r + 17.89516947f) * r + 1.0f);
    /* AS 241's third branch starts where this root passes 5; at 2^-33 it is 4.8 */
    float y = __builtin_sqrtf(-shoal_ln(tail)) - 1.6f;
    float outer = (((0.17023821103f * y + 1.3067284816f) * y + 2.75681539f) * y + 1.4234372777f) /
        ((0.12021132975f * y + 0.7370016425f) * y + 1.0f);
    float magnitude = q < 0.0f ? -outer : outer;
    return (q < 0.0f ? -q : q) <= 0.425f ? middle : magnitude;
}

SHOAL_INLINE void shoal_draw(uint64_t row_key, int64_t first, uint32_t *out) {
    for (int c = 0; c < SHOAL_INITIAL_BLOCK; c += 2) {
        uint64_t x = shoal_mix64(row_key + (uint64_t)(first + c) * SHOAL_GOLDEN);
        out[c] = (uint32_t)x;
        out[c + 1] = (uint32_t)(x >> 32);
    }
}

SHOAL_CLONES static void shoal_fill_initial(const shoal_initial *p, int64_t id, float *out, int64_t dim) {
    if (p->kind == SHOAL_CONSTANT) {
        for (int64_t c = 0; c < dim; c++) out[c] = p->a;
        return;
    }
    const uint64_t row_key = shoal_mix64((uint64_t)id ^ p->key) + p->key;
    const float a = p->a, b = p->b;
    uint32_t bits[SHOAL_INITIAL_BLOCK];
    float value[SHOAL_INITIAL_BLOCK];
    for (int64_t first = 0; first < dim; first += SHOAL_INITIAL_BLOCK) {
        int64_t width = dim - first < SHOAL_INITIAL_BLOCK ? dim - first : SHOAL_INITIAL_BLOCK;
        shoal_draw(row_key, first, bits);
        if (p->kind == SHOAL_UNIFORM) {
            for (int c = 0; c < SHOAL_INITIAL_BLOCK; c++)
                value[c] = a + (b - a) * ((float)(int32_t)(bits[c] >> 8) * (1.0f / 16777216.0f));
        } else if (p->kind == SHOAL_NORMAL) {
            for (int c = 0; c < SHOAL_INITIAL_BLOCK; c++) {
                uint32_t k = bits[c], near = (int32_t)k < 0 ? ~k : k;
                float tail = ((float)(int32_t)near + 0.5f) * (1.0f / 4294967296.0f);
                float q = (int32_t)k < 0 ? 0.5f - tail : tail - 0.5f;
                value[c] = a + b * shoal_quantile(q, tail);
            }
        } else { /* between -2 and +2 standard deviations, as Keras's TruncatedNormal */
            for (int c = 0; c < SHOAL_INITIAL_BLOCK; c++) {
                float u = ((float)(int32_t)(bits[c] >> 8) + 0.5f) * (1.0f / 16777216.0f);
                float q = (u - 0.5f) * 0.95449974f; /* Phi(2) - Phi(-2) */
                float tail = 0.5f - (q < 0.0f ? -q : q);
                value[c] = a + b * shoal_quantile(q, tail);
            }
        }
        memcpy(out + first, value, (size_t)width * sizeof(float));
    }
}

#endif
