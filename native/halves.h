/* float32 to and from bfloat16 and float16, as raw 16-bit patterns.
 *
 * Two roundings: to nearest even (the wire) and stochastic (storage, where
 * rounding every small update to nearest would lose all of them). Branch-free
 * arithmetic on bit patterns, which the compiler vectorises in every clone.
 */
#ifndef SHOAL_HALVES_H
#define SHOAL_HALVES_H

#include "clones.h"

SHOAL_INLINE uint32_t shoal_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

SHOAL_INLINE float shoal_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

SHOAL_INLINE float shoal_from_bfloat16(uint16_t h) { return shoal_float((uint32_t)h << 16); }

/* A NaN keeps its sign and becomes quiet: rounding must not carry it to infinity. */
SHOAL_INLINE uint16_t shoal_to_bfloat16(float x) {
    uint32_t u = shoal_bits(x);
    uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

/* `noise`: 16 uniform random bits. Finite values saturate at the largest finite one. */
SHOAL_INLINE uint16_t shoal_to_bfloat16_stochastic(float x, uint32_t noise) {
    uint32_t u = shoal_bits(x), magnitude = u & 0x7FFFFFFFu;
    uint32_t rounded = (magnitude + (noise & 0xFFFFu)) >> 16;
    rounded = rounded > 0x7F7Fu ? 0x7F7Fu : rounded;
    uint32_t special = (u >> 16) & 0x7FFFu;
    special |= magnitude > 0x7F800000u ? 0x40u : 0u;
    return (uint16_t)(((u >> 16) & 0x8000u) | (magnitude >= 0x7F800000u ? special : rounded));
}

/* Exponent rebias by an exact multiplication, as in F. Giesen's public-domain
 * float<->half notes; subnormal halves come out exact too. */
SHOAL_INLINE float shoal_from_float16(uint16_t h) {
    uint32_t sign = ((uint32_t)h & 0x8000u) << 16, rest = (uint32_t)h & 0x7FFFu;
    float scaled = shoal_float(rest << 13) * shoal_float((254u - 15u) << 23);
    uint32_t special = 0x7F800000u | (rest << 13);
    return shoal_float(sign | (rest >= 0x7C00u ? special : shoal_bits(scaled)));
}

SHOAL_INLINE uint16_t shoal_to_float16(float x) {
    uint32_t u = shoal_bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7FFFFFFFu;
    /* normal: rebias and round the 13 dropped bits to nearest even */
    uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    /* subnormal: adding 0.5 aligns the value to units of 2^-24, rounding by the adder */
    uint32_t small = shoal_bits(shoal_float(magnitude) + 0.5f) - 0x3F000000u;
    uint32_t special = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    uint32_t finite = magnitude < 0x38800000u ? small : normal;
    return (uint16_t)(sign | (magnitude >= 0x477FF000u ? special : finite));
}

/* `noise`: 24 uniform random bits. Works on the two neighbours in units of the
 * half's last place, so subnormal halves are unbiased as well. */
SHOAL_INLINE uint16_t shoal_to_float16_stochastic(float x, uint32_t noise) {
    uint32_t u = shoal_bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7FFFFFFFu;
    uint32_t normal = (magnitude - 0x38000000u + (noise & 0x1FFFu)) >> 13;
    float units = shoal_float(magnitude < 0x38800000u ? magnitude : 0u) * 16777216.0f;
    uint32_t whole = (uint32_t)units;
    float rest = units - (float)whole;
    uint32_t small = whole + (rest > (float)(noise & 0xFFFFFFu) * (1.0f / 16777216.0f) ? 1u : 0u);
    uint32_t finite = magnitude < 0x38800000u ? small : normal;
    finite = finite > 0x7BFFu || magnitude >= 0x47800000u ? 0x7BFFu : finite;
    uint32_t special = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    return (uint16_t)(sign | (magnitude >= 0x7F800000u ? special : finite));
}

SHOAL_CLONES static void shoal_encode_bfloat16(const float *x, uint16_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = shoal_to_bfloat16(x[i]);
}

/* Decoding reads rows that may change meanwhile, as shoal_read does (apply.h). */
SHOAL_RACY SHOAL_CLONES static void shoal_decode_bfloat16(const uint16_t *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = shoal_from_bfloat16(x[i]);
}

SHOAL_CLONES static void shoal_encode_float16(const float *x, uint16_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = shoal_to_float16(x[i]);
}

SHOAL_RACY SHOAL_CLONES static void shoal_decode_float16(const uint16_t *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = shoal_from_float16(x[i]);
}

#endif
