/* Whether float32 values are finite, and which is the first that is not.
 *
 * By the bits: the exponent of an infinity or a NaN is all ones. A block is looked at without a
 * branch, so that the compiler makes vector code of it; only in a block that holds one is its
 * place looked for. */
#ifndef SHOAL_FINITE_H
#define SHOAL_FINITE_H

#include <stdint.h>
#include <string.h>

#define SHOAL_FINITE_BLOCK 1024

/* The position of the first value that is not finite, -1 if there is none. */
static inline int64_t shoal_first_not_finite(const float *values, int64_t count) {
    const uint32_t exponent = 0x7f800000u;
    for (int64_t begin = 0; begin < count; begin += SHOAL_FINITE_BLOCK) {
        int64_t end = begin + SHOAL_FINITE_BLOCK < count ? begin + SHOAL_FINITE_BLOCK : count;
        uint32_t found = 0;
        for (int64_t i = begin; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, values + i, sizeof bits);
            found |= (bits & exponent) == exponent;
        }
        if (!found)
            continue;
        for (int64_t i = begin; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, values + i, sizeof bits);
            if ((bits & exponent) == exponent)
                return i;
        }
    }
    return -1;
}

#endif
