/* Gradients as they travel in 16 bits: native/values.py has the reasons. Each part of a table has a
 * scale of its own: a power of two by which its values are divided before they are rounded.
 */
#ifndef SHOAL_SCALED_H
#define SHOAL_SCALED_H

#include <math.h>

#include "halves.h"

/* As scale_of of native/values.py, for float16. */
static float shoal_scale_of(const float *x, int64_t n) {
    float largest = 0.0f;
    int exponent, nan = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        nan |= size != size;
        largest = size > largest ? size : largest;
    }
    if (nan || !(largest > 0.0f) || largest > 3.40282347e38f) return 1.0f;
    frexpf(largest, &exponent);
    return ldexpf(1.0f, exponent - 15 < -126 ? -126 : exponent - 15);
}

/* As encode of native/values.py, of values divided by a power of two. */
static void shoal_encode_scaled(const float *x, float scale, uint16_t *out, int64_t n) {
    const float factor = 1.0f / scale;
    for (int64_t i = 0; i < n; i++) {
        const float high = x[i] * factor > 65504.0f ? 65504.0f : x[i] * factor;
        out[i] = shoal_to_float16(high < -65504.0f ? -65504.0f : high);
    }
}

#endif
